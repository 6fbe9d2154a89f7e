"""What an entry point takes, and what is wrong with arguments that it does not take."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch

from ..errors import ArgumentError, DeviceError, DTypeError
from ..format.schema import EntryPoint, Program
from ..format.sizes import shape_text
from ..format.torch_names import dtype
from ..memory.overlap import Spans, span
from .arguments import Arguments, Misfit
from .host_inputs import HostInputs

Tensors: TypeAlias = list[torch.Tensor] | tuple[torch.Tensor, ...]


class Signature:
    """The inputs of an entry point by position: `mutated` ones are used in place, `hosts` are lists of the host,
    `users` are all others, which are copied in."""

    def __init__(self, program: Program, spec: EntryPoint, place: torch.device):
        self.spec, self.place = spec, place
        self.names = tuple(item.name for item in spec.inputs)
        self.dtypes = tuple(dtype(item.dtype) for item in spec.inputs)
        self.mutated = tuple(i for i, item in enumerate(spec.inputs) if item.kind == "mutated")
        self.hosts = HostInputs(program, spec, place)
        apart = {*self.mutated, *self.hosts.listed}
        self.users = tuple(i for i in range(len(spec.inputs)) if i not in apart)
        self.all_users = not apart
        self.take_mutated, self.take_users = taker(self.mutated), taker(self.users)
        self.user_dtypes = tuple(self.dtypes[i] for i in self.users)
        self._structured = Arguments(self.names, dict(spec.constants))
        self.plain = self._structured.plain  # how many arguments a call has that passes each input by position

    def ordered(self, args: Sequence[object], kwargs: Mapping[str, object]) -> list[object]:
        """The inputs in the signature's order, however they were passed. Raises ArgumentError."""
        try:
            return self._structured.ordered(args, kwargs)
        except Misfit as misfit:
            raise self._argument_error(str(misfit)) from None

    def refuse(self, tensors: Sequence[object]) -> None:
        """Raises what is wrong with the inputs' types, dtypes and devices, where anything is."""
        for position, (spec, kind, tensor) in enumerate(zip(self.spec.inputs, self.dtypes, tensors, strict=True)):
            if position in self.hosts.listed:
                continue
            if not isinstance(tensor, torch.Tensor):
                raise self._argument_error(f"a {type(tensor).__name__} for {spec.name!r}", "pass torch tensors")
            if tensor.dtype != kind:
                raise DTypeError(
                    f"the input {spec.name!r} has another dtype than the model was built for",
                    where=self.spec.name,
                    expected=f"torch.{spec.dtype}",
                    got=str(tensor.dtype),
                    fix=f"convert it: .to(torch.{spec.dtype})",
                )
            if tensor.device != self.place:
                raise DeviceError(
                    f"the input {spec.name!r} lies on another device than the model",
                    where=self.spec.name,
                    expected=str(self.place),
                    got=str(tensor.device),
                    fix=f"move it with .to({str(self.place)!r})",
                )

    def refuse_layouts(self, tensors: Sequence[object]) -> None:
        """Raises ArgumentError where an input does not lie in memory as a plain tensor does."""
        for name, tensor in zip(self.names, tensors):
            if isinstance(tensor, torch.Tensor) and tensor.layout is not torch.strided:
                raise self._argument_error(
                    f"a tensor with the layout {tensor.layout} for {name!r}", "make it .to_dense()"
                )

    def refuse_shared(self, written: Spans, users: Tensors) -> None:
        """Raises ArgumentError where one of the inputs that are only read shares memory with what the call writes."""
        for position, tensor in zip(self.users, users) if self.mutated else ():
            if written.meets(span(tensor)):
                name = self.names[position]
                raise ArgumentError(
                    f"the input {name!r} shares memory with a mutated input",
                    where=self.spec.name,
                    expected="inputs apart from what the call writes: what it reads would depend on when it does",
                    fix=f"pass {name}.clone()",
                )

    def _argument_error(self, got: str, fix: str = "") -> ArgumentError:
        text = ", ".join(f"{item.name}: {item.dtype}{shape_text(self.spec, item.shape)}" for item in self.spec.inputs)
        text += "".join(f", {name} = {value!r}" for name, value in self.spec.constants if value is not None)
        return ArgumentError("the arguments do not fit", where=self.spec.name, expected=text, got=got, fix=fix)


def taker(positions: Sequence[int]) -> Callable[[Tensors], Tensors]:
    """A function that takes the items at `positions` out of a sequence, as fast as Python can."""
    if not positions or tuple(positions) == tuple(range(positions[0], positions[-1] + 1)):
        return operator.itemgetter(slice(positions[0], positions[-1] + 1) if positions else slice(0))
    return operator.itemgetter(*positions)
