"""The original model, called like an artifact: flat tensors in, flat tensors out, its buffers put back before."""

from collections.abc import Mapping

import torch
from torch.utils import _pytree

from .recipe import Recipe


class Original:
    def __init__(self, model: torch.nn.Module, recipe: Recipe):
        self._model, self._names = model, tuple(recipe.inputs)
        self._buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """The model's tensors in the order of its output's leaves; `inputs` that it mutates are written into."""
        self.reset()
        with torch.no_grad():
            result = self._model(**{name: inputs[name] for name in self._names})
        return [leaf.clone() for leaf in _pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]

    def reset(self) -> None:
        """Give every buffer the value it had at first."""
        for name, buffer in self._model.named_buffers():
            buffer.copy_(self._buffers[name])

    def buffers(self) -> dict[str, torch.Tensor]:
        return dict(self._model.named_buffers())
