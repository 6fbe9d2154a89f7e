"""What does a decoder answer to whole texts that it is given as prompts, and then token by token?"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

DECODED = 4  # tokens of a text that are given one by one


class Walks(Protocol):
    """A decoder over a cache; `aotair.hf.language.Decoder` is one."""

    greedy: bool

    def places(self, count: int) -> Tensor: ...

    def _prefill(self, ids: Tensor, mask: Tensor, table: Tensor) -> Tensor: ...

    def _decode(
        self, ids: Tensor, positions: Tensor, table: Tensor, lengths: Sequence[int] | None = None
    ) -> Tensor: ...


def through_the_cache(made: Walks, whole: Sequence[Tensor], host_lengths: bool = False) -> Tensor:
    """The logits of the last tokens of each text (tokens,), more than `DECODED`: the prompt's last, and one by one,
    (texts, 1 + DECODED, vocabulary). The cache holds the texts then. `host_lengths`: `decode` is given the lengths of
    the sequences."""
    greedy, made.greedy = made.greedy, False
    table = made.places(len(whole)).view(len(whole), -1)
    prompts = [row[:-DECODED] for row in whole]
    width = max(map(len, prompts))
    ids = torch.stack([torch.nn.functional.pad(row, (0, width - len(row))) for row in prompts])
    mask = torch.stack([(torch.arange(width) < len(row)).to(torch.int64) for row in prompts])
    try:
        steps = [made._prefill(ids, mask, table)]
        for step in range(DECODED):
            tokens = torch.stack([row[step - DECODED] for row in whole])
            places = torch.tensor([len(row) + step for row in prompts])
            lengths = (places + 1).tolist() if host_lengths else None
            steps.append(made._decode(tokens, places, table, lengths))
    finally:
        made.greedy = greedy
    return torch.stack(steps, 1)
