"""What the fusion rules, or other passes, did and left alone, with the reasons."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aotair_runtime.errors import AotairError
from aotair_runtime.format.html import html_table, html_text

from ..fusion import Rule
from ..passes.edits import Account
from ..passes.observer import PassRecord


@dataclass(frozen=True)
class Explained:
    """The passes that ran, in order, and the rules that could have run."""

    records: tuple[PassRecord, ...]
    rules: tuple[Rule, ...]

    def counts(self) -> dict[str, tuple[int, int]]:
        """For each fusion rule that ran: how many candidates it fused, and how many it left alone."""
        ran = {rule.name: self._records(rule.name) for rule in self.rules}
        return {name: (len(_rewritten(found)), len(_left(found))) for name, found in ran.items() if found}

    def text(self, name: str | None = None) -> str:
        """All fusion rules, or the rule or pass `name`. Raises AotairError where there is none of that name."""
        ran = [one for one in self._names(name) if self._records(one)]
        idle = [one for one in self._names(name) if not self._records(one)]
        parts = ["\n".join(self._lines(one)) for one in ran]
        if idle:
            parts.append(f"did not run, being disabled or not for this target: {', '.join(idle)}")
        return "\n\n".join(parts)

    def _repr_html_(self) -> str:
        rows = [[name, done, left] for name, (done, left) in self.counts().items()]
        return html_table(["fusion rule", "fused", "left alone"], rows) + html_text(self.text())

    def as_dict(self, name: str | None = None) -> dict[str, dict[str, list[dict[str, str]]]]:
        """The same as plain data: by name, `fused` and `left`, each a list of op, source and reason."""
        return {one: self._data(one) for one in self._names(name)}

    def _names(self, name: str | None) -> Sequence[str]:
        rules = [rule.name for rule in self.rules]
        if name is None:
            return rules
        known = [*rules, *dict.fromkeys(record.name for record in self.records)]
        if name not in known:
            raise AotairError(f"there is no fusion rule or pass {name!r}", expected=", ".join(dict.fromkeys(known)))
        return [name]

    def _records(self, name: str) -> list[PassRecord]:
        return [record for record in self.records if record.name == name]

    def _lines(self, name: str) -> Iterator[str]:
        says = next((f": {rule.says}" for rule in self.rules if rule.name == name), "")
        yield f"{name}{says}"
        records = self._records(name)
        done, left = _rewritten(records), _left(records)
        yield f"  {len(done)} done, {len(left)} left alone"
        for count, account in grouped(done):
            yield f"  + {count} x {account.op} at {account.source or 'no line of the model'}"
        for count, account in grouped(left):
            place = f"at {account.source or 'no line of the model'}" if account.node else "at all"
            yield f"  - {count if account.node else 'no'} x {account.op} {place}: {account.text}"

    def _data(self, name: str) -> dict[str, list[dict[str, str]]]:
        records = self._records(name)
        return {
            "fused": [{"op": a.op, "source": a.source} for a in _rewritten(records)],
            "left": [{"op": a.op, "source": a.source, "reason": a.text} for a in _left(records)],
        }


def _rewritten(records: Sequence[PassRecord]) -> list[Account]:
    return [account for record in records for account in record.accounts if account.rewritten]


def _left(records: Sequence[PassRecord]) -> list[Account]:
    """What the last run that had candidates left: what an earlier one left may have been done since. Behind that, what
    the very last one says of ops that nothing calls."""
    told = [[account for account in record.accounts if account.node] for record in records]
    last = next((accounts for accounts in reversed(told) if accounts), [])
    lacking = [account for account in records[-1].accounts if not account.node] if records else []
    return [account for account in last if not account.rewritten] + lacking


def grouped(accounts: Sequence[Account]) -> Iterator[tuple[int, Account]]:
    """Each line of the model once, with how often; its first account stands for all of them."""
    counts = Counter((account.op, account.source, _shape(account.text)) for account in accounts)
    seen = set()
    for account in accounts:
        key = (account.op, account.source, _shape(account.text))
        if key not in seen:
            seen.add(key)
            yield counts[key], account


def _shape(text: str) -> str:
    """A reason without the numbers that tell one node from another."""
    return re.sub(r"_\d+\b", "", text)
