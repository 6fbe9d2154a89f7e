"""What a format of quantised checkpoints says of a linear layer, and the module that serves it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from ...target.target import Target

FLOATS = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True)
class Wanted:
    """What a tensor of a checkpoint has to be: of one of these dtypes, of one of these shapes."""

    dtypes: tuple[torch.dtype, ...]
    shapes: tuple[tuple[int, ...], ...]


class Scheme(Protocol):
    """What the stored tensors of a layer mean. `stored` has them under the names that the checkpoint has for them,
    without the module's."""

    def product(self, x: Tensor, stored: Mapping[str, Tensor], bias: Tensor | None, target: Target) -> Tensor:
        """What the layer computes, in the dtype of x. It runs under export: what depends on `stored` alone is
        computed before any call."""
        ...

    def fault(self, stored: Mapping[str, Tensor]) -> str:
        """What is wrong with the values; empty where nothing is."""
        ...


@dataclass(frozen=True)
class Layer:
    """A quantised linear layer: the tensors that it needs by name, and what they mean. `adds_bias`: whether its bias is
    added to the product, and not part of another tensor."""

    scheme: Scheme
    tensors: Mapping[str, Wanted]
    adds_bias: bool = True


class Quantisation(Protocol):
    """What a checkpoint says of its quantised layers; each format has one.

    `modules` are those whose weights are quantised. `unused` are tensors of other modules that are read, kept by their
    names and used by nobody: the scales of caches.
    """

    @property
    def modules(self) -> Sequence[str]: ...

    @property
    def unused(self) -> Sequence[str]: ...

    def layer(self, name: str, width: int, depth: int) -> Layer:
        """The layer of that name, whose weight is (width, depth). Raises ModelError where it is not served."""
        ...


class StoredLinear(nn.Module):
    """A linear layer over the tensors of a checkpoint as they lie there, under their names. The result has the dtype
    of x. A call unpacks them: whoever builds the graph computes that once, and again for other weights."""

    def __init__(
        self,
        linear: nn.Linear,
        bias: nn.Parameter | None,
        scheme: Scheme,
        tensors: Mapping[str, Tensor],
        target: Target,
    ):
        super().__init__()
        self.in_features, self.out_features, self.bias = linear.in_features, linear.out_features, bias
        self._scheme, self._names, self._target = scheme, tuple(tensors), target
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def forward(self, x: Tensor) -> Tensor:
        return self._scheme.product(x, self.stored(), self.bias, self._target)

    def stored(self) -> dict[str, Tensor]:
        """The tensors, by name."""
        return {name: self.get_buffer(name) for name in self._names}

    def fault(self) -> str:
        """What is wrong with the values that were read; empty where nothing is."""
        stored = self.stored()
        wrong = [name for name, tensor in stored.items() if tensor.is_floating_point() and not _finite(tensor)]
        return f"{wrong[0]} holds NaN or infinities" if wrong else self._scheme.fault(stored)


def _finite(tensor: Tensor) -> bool:
    return bool(tensor.float().isfinite().all())
