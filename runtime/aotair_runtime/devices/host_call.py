"""An op's call with lists of the host among its arguments, which change between replays."""

from collections.abc import Callable, Sequence

import torch


class HostCall:
    """An op's call, bound to everything but the lists among its keyword arguments; `node` names it for errors.

    `inputs` gives the number of the list for each such argument. `measure` makes the workspace, where it takes one.
    """

    __slots__ = ("_args", "_inputs", "_kwargs", "_op", "_positions", "measure", "node")

    def __init__(
        self,
        node: str,
        op: Callable[..., object],
        args: Sequence[object],
        kwargs: dict[str, object],
        inputs: dict[str, int],
        measure: Callable[[], torch.Tensor] | None,
    ):
        self.node, self._op, self._args, self._kwargs, self.measure = node, op, tuple(args), dict(kwargs), measure
        self._inputs = tuple(inputs.items())
        self._positions = tuple(sorted(set(inputs.values())))

    def takes(self, changed: Sequence[bool]) -> bool:
        """Whether any of its lists is among those that changed."""
        return True in [changed[position] for position in self._positions]

    def set(self, lists: Sequence[list[int]]) -> None:
        """Use these lists from now on."""
        for name, position in self._inputs:
            self._kwargs[name] = lists[position]

    def use_workspace(self, tensor: torch.Tensor) -> None:
        """Use this tensor as workspace from now on."""
        self._kwargs["workspace"] = tensor
        self.measure = None

    def __call__(self) -> object:
        if self.measure is not None:
            self.use_workspace(self.measure())
        return self._op(*self._args, **self._kwargs)
