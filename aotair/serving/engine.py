"""Continuous batching over an artifact with `prefill` and `decode`: requests join and leave between decode steps."""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from aotair_runtime import Model
from aotair_runtime.format.schema import EntryPoint, Program

_CALLS = {"prefill": {"input_ids", "attention_mask", "slots"}, "decode": {"input_ids", "positions", "slots"}}


@dataclass(eq=False)
class Request:
    """One prompt. `deliver` hears each token, and None at the end or an exception where it failed, from the engine's
    thread."""

    prompt: Sequence[int]
    most: int
    deliver: Callable[[int | Exception | None], None]
    cancelled: bool = False
    slot: int = -1
    made: int = 0
    token: int = 0
    arrived: float = field(default_factory=time.perf_counter)

    @property
    def position(self) -> int:
        """Where the next token's key and value go."""
        return len(self.prompt) + self.made - 1


@dataclass(frozen=True)
class Limits:
    """What the artifact's inputs allow: token ids, tokens of a prompt, tokens in all, sequences at a time."""

    vocabulary: int
    prompt: int
    length: int
    slots: int


def generates(program: Program) -> bool:
    """Whether an artifact has what the engine calls: `prefill` and `decode` over slots, as the task text-generation has
    them."""
    inputs = {entry.name: {one.name for one in entry.inputs} for entry in program.entry_points}
    return all(inputs.get(name) == wanted for name, wanted in _CALLS.items())


def limits(program: Program) -> Limits:
    """Read from the artifact, as its recipe said."""
    entries = {entry.name: entry for entry in program.entry_points}
    prefill, decode = entries["prefill"], entries["decode"]
    seq = [dim.name for dim in prefill.dims].index("seq")
    return Limits(
        int(_range(prefill, "input_ids")),
        max(bucket.sizes[seq] for bucket in prefill.buckets),
        int(_range(decode, "positions")),
        min(int(_range(decode, "slots")), max(bucket.sizes[0] for bucket in decode.buckets)),
    )


def _range(entry: EntryPoint, name: str) -> float:
    found = next(spec for spec in entry.inputs if spec.name == name).value_range
    if found is None:
        raise ValueError(f"the recipe gives no range of the input {name} of {entry.name}")
    return float(found[1])


class Engine:
    """A thread that owns the model. `observe(kind, requests, seconds)` hears of each prefill and decode step. `calls`:
    what to call instead of the model's own entry points, by their names, where several ranks make each call."""

    def __init__(
        self,
        model: Model,
        observe: Callable[[str, int, float], None] = lambda *_: None,
        calls: Mapping[str, Callable[..., Any]] | None = None,
    ):
        self.limits = limits(model.program)
        self.failure: Exception | None = None
        self._device, self._observe = model.device, observe
        self._calls = model.entry_points if calls is None else calls
        self._arrivals: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._waiting: deque[Request] = deque()
        self._active: list[Request] = []
        self._free = list(range(self.limits.slots))[::-1]
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def active(self) -> int:
        return self.limits.slots - len(self._free)

    @property
    def waiting(self) -> int:
        return len(self._waiting) + self._arrivals.qsize()

    def submit(self, request: Request) -> None:
        """Raises ValueError where the artifact cannot serve the request, RuntimeError where the engine has failed."""
        known = self.limits
        if self.failure is not None:
            raise RuntimeError(f"the engine has failed: {self.failure}")
        if not isinstance(request.prompt, (list, tuple)) or any(type(token) is not int for token in request.prompt):
            raise ValueError("prompt is a list of token ids")
        if type(request.most) is not int:
            raise ValueError("max_tokens is a whole number")
        if not 1 <= len(request.prompt) <= known.prompt:
            raise ValueError(f"a prompt has 1 to {known.prompt} tokens, not {len(request.prompt)}")
        if any(not 0 <= token < known.vocabulary for token in request.prompt):
            raise ValueError(f"token ids are from 0 to {known.vocabulary - 1}")
        if not 1 <= request.most <= known.length - len(request.prompt):
            raise ValueError(f"max_tokens is from 1 to {known.length - len(request.prompt)} after this prompt")
        self._arrivals.put(request)

    def close(self) -> None:
        """End after the current step; requests that are not done end there."""
        self._arrivals.put(None)
        self._thread.join()

    # ---- the engine's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._take_arrivals():
                self._admit()
                if self._active:
                    self._step()
        except Exception as error:  # the model may be in any state: nothing more is served, and everybody is told
            self.failure = error
        for request in (*self._active, *self._waiting):
            request.deliver(self.failure)

    def _take_arrivals(self) -> bool:
        """Wait where there is nothing to do; False: to end."""
        block = not self._active and not self._waiting
        while True:
            try:
                request = self._arrivals.get(block=block)
            except queue.Empty:
                return True
            if request is None:
                return False
            self._waiting.append(request)
            block = False

    def _admit(self) -> None:
        """Prefill as many of those that wait as there are free rows of the cache."""
        joined: list[Request] = []
        while self._waiting and self._free:
            request = self._waiting.popleft()
            if not request.cancelled:
                request.slot = self._free.pop()
                joined.append(request)
        if not joined:
            return
        start, longest = time.perf_counter(), max(len(request.prompt) for request in joined)
        ids, mask = (torch.zeros(len(joined), longest, dtype=torch.int64) for _ in range(2))
        for row, request in enumerate(joined):
            ids[row, : len(request.prompt)], mask[row, : len(request.prompt)] = torch.tensor(request.prompt), 1
        tokens = self._call("prefill", ids, mask, _column(joined, "slot"))
        self._observe("prefill", len(joined), time.perf_counter() - start)
        self._hand_out(joined, tokens)
        self._active += [request for request in joined if request.slot >= 0]

    def _step(self) -> None:
        start, now = time.perf_counter(), self._active
        tokens = self._call("decode", _column(now, "token"), _column(now, "position"), _column(now, "slot"))
        self._observe("decode", len(now), time.perf_counter() - start)
        self._hand_out(now, tokens)
        self._active = [request for request in now if request.slot >= 0]

    def _call(self, entry: str, *inputs: torch.Tensor) -> list[int]:
        outputs: torch.Tensor = self._calls[entry](*(tensor.to(self._device) for tensor in inputs))
        tokens: list[int] = (outputs.argmax(-1) if outputs.dim() > 1 else outputs).tolist()  # else the model chose
        return tokens

    def _hand_out(self, requests: Sequence[Request], tokens: Sequence[int]) -> None:
        """Deliver last, so that whoever has an answer finds it counted and its row of the cache free."""
        for request, token in zip(requests, tokens, strict=True):
            request.token, request.made = token, request.made + 1
            if not request.cancelled:
                request.deliver(token)
            if request.cancelled or request.made == request.most:
                self._free.append(request.slot)
                request.slot = -1
                request.deliver(None)


def _column(requests: Sequence[Request], name: str) -> torch.Tensor:
    return torch.tensor([getattr(request, name) for request in requests])
