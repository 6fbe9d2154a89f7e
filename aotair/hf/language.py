"""Any of transformers' decoders as methods over one set of buffers: prefill, decode, extend and verify."""

import inspect
from typing import Any

import torch
from torch import nn

from ..errors import UnsupportedError
from .caches import Call, Rows, cache_argument, keep
from .masks import masks_by_sequence
from .settle import settle


class LanguageModel(nn.Module):
    """`slots` rows of `length` tokens, and one more row that padding points to (slot number `slots`).

    What the model's layers keep are buffers: state that all methods share. Each method gives logits (batch, …,
    vocabulary), or the likeliest tokens with `greedy`.
    """

    def __init__(self, model: Any, slots: int, length: int, greedy: bool = False):
        super().__init__()
        self.model, self.slots, self.length, self.greedy = model, slots, length, greedy
        settle(model, length)
        self._kept = keep(self, model, torch.zeros(1, 2, dtype=torch.int64), slots + 1, length)
        takes = inspect.signature(model.forward).parameters
        self._takes = frozenset(takes)
        self._cache = cache_argument(model)

    @property
    def config(self) -> Any:
        """transformers' own, of the model."""
        return self.model.config

    def rows(self) -> list[torch.Tensor]:
        """The buffers of the cache."""
        return [self.get_buffer(name) for name in self._kept.names()]

    @property
    def recurrent(self) -> bool:
        """Whether a layer keeps states, in which no token can be masked later."""
        return bool(self._kept.states)

    def prefill(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Whole prompts: ids and mask (batch, seq), ones before zeros, and the row of the cache that each goes to
        (batch,). Gives the logits of each prompt's last token."""
        ids, starts, real = _to_the_right(input_ids, attention_mask.sum(1))
        return self._answer(ids, Call(slots, starts, real, self.slots, self.length, fresh=True), 1)[:, -1]

    def decode(self, input_ids: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """One token each: ids, positions and rows of the cache, all (batch,). Gives what `prefill` gives."""
        real = torch.ones_like(input_ids[:, None], dtype=torch.bool)
        return self._answer(input_ids[:, None], Call(slots, positions, real, self.slots, self.length, fresh=False), 1)[
            :, -1
        ]

    def extend(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor
    ) -> torch.Tensor:
        """The next tokens of sequences that the cache holds: ids and mask (batch, seq), ones before zeros, the position
        of each first token and the row (batch,). Gives what `prefill` gives."""
        self._refuse_recurrent()
        ids, shift, real = _to_the_right(input_ids, attention_mask.sum(1))
        return self._answer(ids, Call(slots, positions + shift, real, self.slots, self.length, fresh=False), 1)[:, -1]

    def verify(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor
    ) -> torch.Tensor:
        """As `extend`, with the logits of every token, (batch, seq, vocabulary): what a draft's tokens are checked by.
        Rows of tokens that do not hold are overwritten by the next call at their positions."""
        self._refuse_recurrent()
        return self._answer(
            input_ids, Call(slots, positions, attention_mask > 0, self.slots, self.length, fresh=False), 0
        )

    def _refuse_recurrent(self) -> None:
        if self.recurrent:
            raise UnsupportedError(
                "the model has recurrent layers, whose states cannot be entered where a call pads",
                where=type(self.model).__name__,
                expected="the entry points prefill and decode",
                fix="remove extend and verify from entry_points",
            )

    def _answer(self, ids: torch.Tensor, call: Call, last: int) -> torch.Tensor:
        """Logits of the `last` columns, of all where that is 0."""
        rows = Rows(self, self._kept, call)
        reads = call.fresh or self._kept.attention  # recurrent layers are told of nothing but padding
        given = {
            "input_ids": ids,
            "attention_mask": call.seen() if reads else None,
            "position_ids": call.positions,
            "use_cache": True,
            "logits_to_keep": last,
            self._cache: rows,
        }
        with masks_by_sequence():
            answer = self.model(**{name: value for name, value in given.items() if name in self._takes})
        rows.store()
        logits: torch.Tensor = answer.logits[:, -last:]
        return logits.argmax(-1) if self.greedy else logits


def _to_the_right(ids: torch.Tensor, count: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows of `count` tokens moved to the end of their rows, which is where recurrent layers need them and where the
    last columns are the last tokens: the ids, the position of each first column, and which columns are tokens."""
    seq = ids.shape[1]
    columns = torch.arange(seq, device=ids.device)
    first = count - seq
    source = columns + first[:, None]
    return ids.gather(1, source.remainder(seq)), first, source >= 0
