"""Tokens of one sequence, through `prefill` and `decode` of a loaded model."""

from collections.abc import Callable, Iterator, Sequence

import torch

from aotair_runtime.errors import AotairError
from aotair_runtime.model import Model

_SLOT = 0
_TAKEN = tuple(
    {"input_ids", "positions", *place} for place in (("slots",), ("block_table",), ("block_table", "lengths"))
)


class Generator:
    """One row of a model's cache. Raises AotairError where the model has no prefill and decode."""

    def __init__(self, model: Model):
        for name in ("prefill", "decode"):
            if name not in model.entry_points:
                raise AotairError(
                    "the artifact generates no text",
                    where=model.program.name,
                    expected="the entry points prefill and decode",
                    got=", ".join(model.entry_points),
                )
        self._model = model
        prefill, decode = (model.entry_points[name].spec for name in ("prefill", "decode"))
        seq = [dim.name for dim in prefill.dims].index("seq")
        self._widest = max(bucket.sizes[seq] for bucket in prefill.buckets)
        inputs = {spec.name: spec for spec in decode.inputs}
        if "positions" not in inputs or inputs["positions"].value_range is None or set(inputs) not in _TAKEN:
            raise AotairError(
                "decode has other inputs than the task text-generation gives it",
                where=model.program.name,
                expected="input_ids, positions, and slots or block_table, and lengths on an NPU",
                got=", ".join(inputs),
            )
        self.length = int(inputs["positions"].value_range[1])
        columns = inputs["block_table"].shape[1] if "block_table" in inputs else None
        self._says_lengths = "lengths" in inputs
        # The first row of the cache, or its first blocks.
        self._place = torch.tensor([_SLOT]) if not isinstance(columns, int) else torch.arange(columns)[None]

    def tokens(
        self, prompt: Sequence[int], choose: Callable[[torch.Tensor], int], ends: frozenset[int], most: int
    ) -> Iterator[int]:
        """The tokens after a prompt, each as soon as it is chosen, until one of `ends`, `most` of them or the end of
        the row. What of the prompt exceeds the largest bucket is read token by token."""
        if not 1 <= len(prompt) < self.length:
            raise AotairError(
                "the prompt does not fit",
                expected=f"1 to {self.length - 1} tokens: the row of the cache has {self.length}",
                got=str(len(prompt)),
            )
        first, rest = prompt[: self._widest], prompt[self._widest :]
        ids = torch.tensor([list(first)])
        answer = self._call("prefill", ids, torch.ones_like(ids), self._place)
        place = len(first)
        for token in rest:
            answer = self._next(token, place)
            place += 1
        for _ in range(most):
            token = choose(answer)
            if token in ends:
                return
            yield token
            if place == self.length:
                return
            answer = self._next(token, place)
            place += 1

    def _next(self, token: int, place: int) -> torch.Tensor:
        inputs = torch.tensor([token]), torch.tensor([place]), self._place
        return self._call("decode", *inputs, lengths=[place + 1] if self._says_lengths else None)

    def _call(self, entry: str, *inputs: torch.Tensor, lengths: list[int] | None = None) -> torch.Tensor:
        """The logits of the one sequence, (vocabulary,)."""
        given = [tensor.to(self._model.device) for tensor in inputs] + ([] if lengths is None else [lengths])
        answer: torch.Tensor = self._model.entry_points[entry](*given)[0]
        if answer.dim() == 0:  # greedy: the token itself, and no other may be drawn
            scores = torch.full((int(answer) + 1,), -torch.inf)
            scores[-1] = 0
            return scores
        return answer
