"""Hears before and after each stage: verifies the graph, dumps it, times it, logs it, keeps what a pass changed. Passes
hold none of this."""

import contextlib
import difflib
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from aotair_runtime.errors import AotairError

from ..errors import InternalError
from ..graph import origin
from ..graph.show import show
from ..graph.verify import check_graph
from ..target.target import Target
from .changes import Change, Lines, changes, lines_of
from .edits import Account, Edits

log = logging.getLogger("aotair")


@dataclass(frozen=True)
class PassRecord:
    """What a pass did: rewrites, nodes before and after, seconds, what became of each candidate, in which graph, and
    the places that it changed, where the observer keeps these."""

    name: str
    rewrites: int
    before: int
    after: int
    seconds: float
    accounts: tuple[Account, ...] = ()
    graph: str = ""
    changes: tuple[Change, ...] = ()


@dataclass
class Observer:
    """`dump`: a directory that receives `NN_stage.txt` after each stage, `NN_stage_GRAPH.txt` where there are several
    graphs, or None; `code`: files `.py` instead, the graph as Python code. `max_rewrites`: how many rewrites all passes
    together may make, or None; `keeps`: what each pass changed, for a report. `listener` gets each stage's name, the
    graph as it is then, and what that is called."""

    target: Target
    dump: Path | None = None
    max_rewrites: int | None = None
    code: bool = False
    keeps: bool = False
    records: list[PassRecord] = field(default_factory=list)
    listener: Callable[[str, torch.fx.Graph, str], None] | None = None
    _stages: int = 0
    _graph: str = ""
    _last: tuple[torch.fx.GraphModule | None, Lines] = (None, ())  # as the pass before left it

    @contextlib.contextmanager
    def over(self, graph: str) -> Iterator[None]:
        """What comes within is done to this graph: an entry point, a bucket; "" where there is one."""
        before, self._graph = self._graph, graph
        try:
            yield
        finally:
            self._graph = before

    def stage(self, name: str, module: torch.fx.GraphModule) -> None:
        """A stage that made `module` is done: check it and dump it."""
        check_graph(module, name)
        origin.complete(module.graph)
        if self.listener is not None:
            self.listener(name, module.graph, self._graph)
        if self.dump is not None:
            self.dump.mkdir(parents=True, exist_ok=True)
            parts = [f"{self._stages:02}", name, re.sub(r"[^\w=.-]+", "_", self._graph)]
            text = module.print_readable(print_output=False) if self.code else show(module)
            (self.dump / f"{'_'.join(filter(None, parts))}.{'py' if self.code else 'txt'}").write_text(text)
        self._stages += 1

    def rewrites(self) -> dict[str, int]:
        """How many rewrites each pass made, for those that made any."""
        counts: Counter[str] = Counter()
        for record in self.records:
            counts[record.name] += record.rewrites
        return {name: count for name, count in counts.items() if count}

    def _left(self) -> int | None:
        return None if self.max_rewrites is None else self.max_rewrites - sum(r.rewrites for r in self.records)

    def _lines(self, module: torch.fx.GraphModule) -> Lines:
        """The graph before a pass: what the one before has left, where that was of the same graph."""
        last, lines = self._last
        return lines if last is module and lines else lines_of(module)

    @contextlib.contextmanager
    def watch(self, name: str, module: torch.fx.GraphModule) -> Iterator[Edits]:
        """Around a pass over `module`, which reports through what this yields."""
        edits = Edits(name, self.target, self._left(), self._graph)
        told = self.keeps or log.isEnabledFor(logging.DEBUG)
        lines = self._lines(module) if told else ()
        before, start = len(module.graph.nodes), time.perf_counter()
        there = origin.calls(module.graph)
        try:
            yield edits
        except AotairError:
            raise
        except Exception as error:
            done = ", ".join(record.name for record in self.records) or "nothing"
            raise InternalError(f"the pass {name} failed after {done}: {error}") from error
        after, seconds = len(module.graph.nodes), time.perf_counter() - start
        origin.mark(module.graph, there, name)
        now = lines_of(module) if told else ()
        self._last = (module, now)
        places = changes(lines, now) if self.keeps else ()
        accounts = tuple(edits.accounts)
        self.records.append(PassRecord(name, edits.count, before, after, seconds, accounts, self._graph, places))
        where = f"{name} ({self._graph})" if self._graph else name
        log.debug("%s: %d rewrites, %d nodes before, %d after, %.3f s", where, edits.count, before, after, seconds)
        self.stage(name, module)
        if log.isEnabledFor(logging.DEBUG) and (text := _difference(lines, now)):
            log.debug("%s: the graph where it changed, by the lines that a dump has:\n%s", where, text)


def _difference(before: Lines, after: Lines) -> str:
    """What a pass changed, each place with the nodes around it; empty where nothing did."""
    old, new = [text for text, _ in before], [text for text, _ in after]
    return "\n".join(difflib.unified_diff(old, new, "before", "after", lineterm="", n=2))
