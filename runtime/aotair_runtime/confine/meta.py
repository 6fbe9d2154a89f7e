"""What does a call return? Tried on torch's meta device, which computes shapes by the checks that the op itself makes.

A result of another shape than planned would make an op resize the tensor that it is given, and write elsewhere.
"""

from collections.abc import Mapping, Sequence

import torch

from ..errors import MalformedError
from ..format.schema import Bucket, Form, Instruction, Program, WorkspaceArg
from ..format.torch_names import dtype
from ..format.values import Lists, argument_value
from ..format.written import out_arguments, written_arguments

_DEVICE = torch.device("meta")


class Meta:
    """`written`: by op, the arguments that it writes to; `vouched`: whether it may be unable to say what it returns."""

    def __init__(
        self,
        program: Program,
        ops: Sequence[torch._ops.OpOverload],
        written: Sequence[Sequence[str]],
        vouched: Sequence[bool],
    ):
        self._program, self._ops, self._written, self._vouched = program, ops, written, vouched
        self._read: dict[int, torch.Tensor] = {}  # by layout: tensors that no call writes to

    def check(self, item: Instruction, bucket: Bucket, lists: Lists, allowed: int, place: str) -> None:
        """Raises MalformedError where a call is refused, or returns what does not fit. `allowed`: the bytes that fresh
        results may take."""
        op = self._ops[item.op]
        changed = [arg.index for arg in written_arguments(item, op._schema, self._written[item.op])]
        tensors = {n: self._made(bucket.tensors[n].layout) for n in (*item.outs, *changed) if n >= 0}

        def tensor(number: int) -> torch.Tensor:
            return tensors[number] if number in tensors else self._reading(bucket.tensors[number].layout)

        args = [argument_value(arg, tensor, _DEVICE, lists) for arg in item.args]
        named = ((name, arg) for name, arg in item.kwargs if not isinstance(arg, WorkspaceArg))
        kwargs = {name: argument_value(arg, tensor, _DEVICE, lists) for name, arg in named}
        if item.form == Form.OUT:
            kwargs |= out_arguments(op, self._written[item.op], [tensors.get(n) for n in item.outs], place)
        results = self._called(item, args, kwargs, place)
        if results is None:
            return
        if item.form == Form.COPY:
            self._fits_copies(item, results, bucket, allowed, place)
        for number, made in tensors.items():
            if item.form != Form.COPY or number in changed:
                self._fits(op, made.shape, bucket.tensors[number].layout, place)

    def _called(
        self, item: Instruction, args: Sequence[object], kwargs: Mapping[str, object], place: str
    ) -> Sequence[torch.Tensor] | None:
        op = self._ops[item.op]
        try:
            made = op(*args, **kwargs)
        except NotImplementedError as error:
            if self._vouched[item.op]:
                return None
            raise MalformedError(f"nobody can say what {op} returns: {str(error)[:200]}", where=place) from error
        except Exception as error:  # whatever an op says of arguments that it does not take
            raise MalformedError(f"{op} does not take its arguments: {str(error)[:300]}", where=place) from error
        results = made if isinstance(made, (tuple, list)) else [] if made is None else [made]
        if not all(isinstance(result, torch.Tensor) for result in results):
            raise MalformedError(f"{op} returns more than tensors", where=place)
        return results

    def _fits_copies(
        self, item: Instruction, results: Sequence[torch.Tensor], bucket: Bucket, allowed: int, place: str
    ) -> None:
        """What is copied has the shape of its place, and all of it together is no larger than the bucket says."""
        op = self._ops[item.op]
        if len(results) != len(item.outs):
            raise MalformedError(f"{op} does not return {len(item.outs)} tensors", where=place)
        for result, number in zip(results, item.outs):
            if number >= 0:
                self._fits(op, result.shape, bucket.tensors[number].layout, place)
        nbytes, most = sum(result.untyped_storage().nbytes() for result in results), max(allowed, self._program.arena)
        if nbytes > most:
            raise MalformedError(
                f"{op} returns more than the bucket says", where=place, expected=f"{most} bytes", got=f"{nbytes} bytes"
            )

    def _fits(self, op: torch._ops.OpOverload, shape: torch.Size, number: int, place: str) -> None:
        planned = self._program.layouts[number].shape
        if tuple(shape) != planned:
            raise MalformedError(
                f"a result of {op} does not fit its place",
                where=place,
                expected=f"the shape {list(planned)[:20]}, as planned",
                got=f"{list(shape)[:20]}",
            )

    def _made(self, number: int) -> torch.Tensor:
        item = self._program.layouts[number]
        return torch.empty_strided(item.shape, item.strides, dtype=dtype(item.dtype), device=_DEVICE)

    def _reading(self, layout: int) -> torch.Tensor:
        """One that no call writes to."""
        if layout not in self._read:
            self._read[layout] = self._made(layout)
        return self._read[layout]
