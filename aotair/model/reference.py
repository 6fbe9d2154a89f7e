"""The original model, called like an artifact: flat tensors in, flat tensors out, its buffers put back before."""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
from torch.utils import _pytree

from ..errors import UnsupportedError
from ..graph.resolve import resolved
from ..recipe.entry import EntryJob
from .arguments import MethodArguments, register_results

# Where a buffer is registered, and under which whole name, itself, and its value: a call may write into it, or put
# another in its place.
_Buffer = tuple[torch.nn.Module, str, str, torch.Tensor, torch.Tensor]


@contextlib.contextmanager
def calling(model: torch.nn.Module, method: str) -> Iterator[torch.nn.Module]:
    """Within the block, a call of `model` is one of its `method`, hooks included."""
    had = model.__dict__.get("forward")
    if method != "forward":
        model.forward = getattr(model, method)
    try:
        yield model
    finally:
        if method != "forward":
            if had is None:
                del model.forward
            else:
                model.forward = had


class Original:
    """One entry point of the model. `like`: another entry point of the same, whose first values these are too.
    `together`: names for buffers one behind the other, by which states are told where ranks have some each."""

    def __init__(
        self,
        model: torch.nn.Module,
        job: EntryJob,
        like: "Original | None" = None,
        together: Mapping[str, Sequence[str]] | None = None,
    ):
        self.model, self._names, self._method = model, tuple(job.inputs), job.method
        self._arguments = MethodArguments(getattr(model, job.method), job)
        self._lists = tuple(name for name, item in job.inputs.items() if item.host)
        own = dict(model.named_buffers())
        self._together = {name: parts for name, parts in (together or {}).items() if own.keys() >= {*parts}}
        self._first: list[_Buffer] = _buffers_of(model) if like is None else like._first

    def __call__(
        self, inputs: Mapping[str, torch.Tensor], states: Mapping[str, torch.Tensor] | None = None
    ) -> list[torch.Tensor]:
        """The model's tensors in the order of its output's leaves; `inputs` that it mutates are written into.

        Its buffers have their first values before, but for those that `states` gives others.
        """
        states = self._apart(states or {})
        self.reset(states)
        buffers = dict(self.model.named_buffers()) if states else {}
        for name, value in states.items():
            buffers[name].copy_(value)
        leaves = _pytree.tree_leaves(self.call(inputs))
        return [resolved(leaf).clone() for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def call(self, inputs: Mapping[str, torch.Tensor]) -> object:
        """What the model returns, with its buffers as they are."""
        with torch.no_grad(), calling(self.model, self._method) as model:
            given = {name: inputs[name] for name in self._names}
            args, kwargs = self._arguments(given | {name: given[name].tolist() for name in self._lists})
            result = model(*args, **kwargs)
        register_results(result)
        return result

    def reset(self, but: Collection[str] = ()) -> None:
        """Put every buffer back that was there at first, with the value it had, `but` those that get another."""
        for module, name, whole_name, buffer, value in self._first:
            if buffer.shape != value.shape:
                raise UnsupportedError(
                    f"the model resizes its buffer {whole_name}",
                    expected="buffers that keep their shapes: a program plans their memory",
                    got=f"{list(value.shape)}, then {list(buffer.shape)}",
                    fix="make it as large as it will be, and say in an input how much of it is used",
                )
            if whole_name not in but:
                _once(buffer).copy_(_once(value))
            module._buffers[name] = buffer

    def has_fast_path(self) -> bool:
        """Whether torch computes a part of the model in another way where nobody traces it."""
        kinds = (torch.nn.TransformerEncoderLayer, torch.nn.TransformerEncoder, torch.nn.MultiheadAttention)
        return torch.backends.mha.get_fastpath_enabled() and any(isinstance(m, kinds) for m in self.model.modules())

    def buffers(self) -> dict[str, torch.Tensor]:
        """The buffers by name, and copies of those that are told together."""
        return self._with_together(dict(self.model.named_buffers()))

    def first_values(self) -> dict[str, torch.Tensor]:
        """What the buffers hold before a call that is given no others."""
        return self._with_together({name: resolved(value) for _, _, name, _, value in self._first})

    def _with_together(self, buffers: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {**buffers, **{name: torch.cat([buffers[n] for n in own]) for name, own in self._together.items()}}

    def _apart(self, states: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """States by the names of the model's own buffers."""
        found = {name: value for name, value in states.items() if name not in self._together}
        for name in states.keys() & self._together.keys():
            parts = self._together[name]
            found |= zip(parts, states[name].chunk(len(parts)), strict=True)
        return found


def _buffers_of(model: torch.nn.Module) -> list[_Buffer]:
    return [
        (module, name, f"{path}.{name}" if path else name, buffer, _once(buffer).clone().expand(buffer.shape))
        for path, module in model.named_modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]


def _once(tensor: torch.Tensor) -> torch.Tensor:
    """What of an expanded tensor is memory of its own: to that alone can be written."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride())):
        if size > 1 and stride == 0:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor
