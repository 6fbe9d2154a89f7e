"""What a capture of one bucket gives."""

from dataclasses import dataclass
from typing import TypeAlias

import torch

from ..devices import Graph, Usage

Key: TypeAlias = tuple[tuple[int, int], ...]  # (position, address) of each input used in place


@dataclass(slots=True)
class Captured:
    """A bucket ready to replay: `buffers` receive copies of inputs (None: the caller's own is used), `outputs` hold the
    results (None: they lie in the caller's memory)."""

    key: Key
    graph: Graph
    buffers: tuple[torch.Tensor | None, ...]
    outputs: tuple[torch.Tensor | None, ...]
    cost: Usage
