"""Hears before and after each stage: verifies the graph, dumps it, times it, logs it. Passes hold none of this."""

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from aotair_runtime.errors import AotairError

from ..config import CompilerConfig
from ..errors import InternalError
from ..graph.show import show
from ..graph.verify import verify
from ..targets import Target
from .edits import Account, Edits

log = logging.getLogger("aotair")


@dataclass(frozen=True)
class PassRecord:
    """What a pass did: rewrites, nodes before and after, seconds, and what became of each candidate."""

    name: str
    rewrites: int
    before: int
    after: int
    seconds: float
    accounts: tuple[Account, ...] = ()


@dataclass
class Observer:
    """`dump`: a directory that receives `NN_stage.txt` after each stage, or None; `code`: `NN_stage.py` instead, the
    graph as Python code. `max_rewrites`: how many rewrites all
    passes together may make, or None."""

    target: Target
    dump: Path | None = None
    max_rewrites: int | None = None
    code: bool = False
    records: list[PassRecord] = field(default_factory=list)
    _stages: int = 0

    def stage(self, name: str, module: torch.fx.GraphModule) -> None:
        """A stage that made `module` is done: check it and dump it."""
        verify(module, name)
        if self.dump is not None:
            self.dump.mkdir(parents=True, exist_ok=True)
            text = module.print_readable(print_output=False) if self.code else show(module)
            (self.dump / f"{self._stages:02}_{name}.{'py' if self.code else 'txt'}").write_text(text)
        self._stages += 1

    def rewrites(self) -> dict[str, int]:
        """How many rewrites each pass made, for those that made any."""
        counts: Counter[str] = Counter()
        for record in self.records:
            counts[record.name] += record.rewrites
        return {name: count for name, count in counts.items() if count}

    def _left(self) -> int | None:
        return None if self.max_rewrites is None else self.max_rewrites - sum(r.rewrites for r in self.records)

    @contextlib.contextmanager
    def watch(self, name: str, module: torch.fx.GraphModule, config: CompilerConfig) -> Iterator[Edits]:
        """Around a pass over `module`, which reports through what this yields."""
        edits = Edits(name, self.target, config, self._left())
        before, start = len(module.graph.nodes), time.perf_counter()
        try:
            yield edits
        except AotairError:
            raise
        except Exception as error:
            done = ", ".join(record.name for record in self.records) or "nothing"
            raise InternalError(f"the pass {name} failed after {done}: {error}") from error
        after, seconds = len(module.graph.nodes), time.perf_counter() - start
        self.records.append(PassRecord(name, edits.count, before, after, seconds, tuple(edits.accounts)))
        log.debug("%s: %d rewrites, %d nodes before, %d after, %.3f s", name, edits.count, before, after, seconds)
        self.stage(name, module)
