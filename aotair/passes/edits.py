"""What a pass reports through: leave for each rewrite, what it did, and why a candidate was left alone."""

import logging
from dataclasses import dataclass

from torch.fx.node import Node

from ..graph.show import position, target_name
from ..graph.user_line import source
from ..target.target import Target

log = logging.getLogger("aotair")


@dataclass(frozen=True)
class Account:
    """What became of one candidate: rewritten or left as it is, what was done or why not, and the user's line."""

    rewritten: bool
    node: str
    op: str
    text: str
    source: str


class Edits:
    """One pass over one graph, for one target. `limit`: the most rewrites (None: any number), to find a wrong one by
    halves. `graph`: which graph of the build it is, for the log."""

    def __init__(self, name: str, target: Target, limit: int | None = None, graph: str = ""):
        self.name, self.target, self.count = name, target, 0
        self._pass = f"{name} ({graph})" if graph else name
        self.accounts: list[Account] = []
        self._limit = limit

    def may(self, node: Node, what: str) -> bool:
        """Leave to rewrite `node`, counted; a pass that gets none leaves it as it is."""
        if self._limit is not None and self.count >= self._limit:
            return False
        self.count += 1
        self._account(node, what, rewritten=True)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s: %s %s%s", self._pass, _placed(node), what, source(node))
        return True

    def skipped(self, why: str) -> None:
        """The pass leaves the whole graph alone."""
        log.info("%s: skipped, because %s", self._pass, why)

    def declined(self, node: Node, why: str) -> None:
        """`node` was a candidate and stays as it is."""
        self._account(node, why, rewritten=False)
        if log.isEnabledFor(logging.DEBUG):
            what = f"{_placed(node)} ({target_name(node)})"
            log.debug("%s: %s stays as it is: %s%s", self._pass, what, why, source(node))

    def missing(self, op: object, why: str) -> None:
        """The pass looked for `op`, and there is none."""
        self.accounts.append(Account(False, "", str(op), why, ""))
        log.debug("%s: no %s: %s", self.name, op, why)

    def _account(self, node: Node, text: str, *, rewritten: bool) -> None:
        self.accounts.append(Account(rewritten, node.name, target_name(node), text, source(node).strip(" ()")))


def _placed(node: Node) -> str:
    """A node's name, and the line that it has in a dump of the graph as it is now."""
    line = position(node)
    return f"{node.name}, which is gone," if line is None else f"line {line}, {node.name}"
