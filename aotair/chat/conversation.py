"""Messages back and forth, as long as they fit into a row of the cache."""

from collections.abc import Iterator

from aotair_runtime.errors import AotairError

from .generate import Generator
from .sampling import Sampler
from .tokenizer import Message, Tokenizer


class Conversation:
    """`made` counts the tokens of all answers."""

    def __init__(
        self, tokenizer: Tokenizer, generator: Generator, sampler: Sampler, system: str | None, max_tokens: int
    ):
        self._tokenizer, self._generator, self._sampler = tokenizer, generator, sampler
        self._first: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self._most, self._messages = max_tokens, list(self._first)
        self.made = 0

    def clear(self) -> None:
        """Begin anew."""
        self._messages = list(self._first)

    def say(self, text: str) -> Iterator[str]:
        """The pieces of the answer. Where the conversation has become longer than the cache, its oldest messages are
        left out; raises AotairError where this message alone is too long."""
        self._messages.append({"role": "user", "content": text})
        ids = self._fitting()
        answer = ""
        for piece in self._tokenizer.pieces(self._counted(ids)):
            answer += piece
            yield piece
        self._messages.append({"role": "assistant", "content": answer})

    def _counted(self, ids: list[int]) -> Iterator[int]:
        for token in self._generator.tokens(ids, self._sampler, self._tokenizer.ends, self._most):
            self.made += 1
            yield token

    def _fitting(self) -> list[int]:
        while True:
            ids = self._tokenizer.encode(self._messages)
            if len(ids) < self._generator.length:
                return ids
            kept, later = self._messages[: len(self._first)], self._messages[len(self._first) :]
            if len(later) == 1:
                self._messages = kept
                raise AotairError(
                    "the message is longer than the model's cache",
                    expected=f"{self._generator.length - 1} tokens at most",
                    got=str(len(ids)),
                    fix="build with a larger model.kwargs.length",
                )
            self._messages = kept + later[2:]
