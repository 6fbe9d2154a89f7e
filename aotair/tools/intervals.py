"""Plans of intervals that a user has in a file: read, planned, checked, shown."""

import csv
from dataclasses import dataclass
from pathlib import Path

from aotair_runtime.errors import AotairError
from aotair_runtime.format.text import table

from ..errors import InternalError
from ..plan.check import violations
from ..plan.search.arena import Interval, Plan, plan_arena

_COLUMNS = ("id", "lower", "upper", "size")


def read_intervals(file: Path) -> dict[str, Interval]:
    """The intervals of a file in MiniMalloc's format, by id: columns id, lower, upper (excluded) and size.

    Raises AotairError where it cannot be read.
    """
    found: dict[str, Interval] = {}
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                lower, upper, size = (int(row[name]) for name in _COLUMNS[1:])
                if not 0 <= lower < upper or size < 0 or row["id"] in found:
                    raise ValueError(f"id {row['id']!r}: lower {lower}, upper {upper}, size {size}")
                found[row["id"]] = Interval(size, lower, upper - 1)
    except (OSError, UnicodeDecodeError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise AotairError(
            f"no intervals: {type(error).__name__}: {error}",
            where=str(file),
            expected=f"CSV with the columns {', '.join(_COLUMNS)}: whole numbers, 0 <= lower < upper, ids only once",
        ) from error
    return found


@dataclass(frozen=True)
class Planned:
    """A plan, and the ids of its intervals in its order."""

    ids: tuple[str, ...]
    plan: Plan

    def as_dict(self) -> dict[str, object]:
        plan = self.plan
        offsets = dict(zip(self.ids, plan.offsets))
        bounds = {"height": plan.height, "lower_bound": plan.lower_bound, "gap": plan.height - plan.lower_bound}
        return {**bounds, "algorithm": plan.algorithm, "offsets": offsets}

    def text(self) -> str:
        plan = self.plan
        gap = plan.height - plan.lower_bound
        rows = [
            ["height", f"{plan.height:,}"],
            ["lower bound", f"{plan.lower_bound:,}"],
            ["gap", f"{gap:,} ({gap / max(1, plan.lower_bound):.2%})"],
            ["algorithm", plan.algorithm],
        ]
        offsets = [[one, f"{offset:,}"] for one, offset in zip(self.ids, plan.offsets)]
        return f"{table(['plan', 'bytes'], rows)}\n\n{table(['id', 'offset'], offsets)}"


def planned(file: Path, alignment: int, effort: float) -> Planned:
    """Plan what is in a file, and check the plan."""
    if alignment < 1 or alignment & (alignment - 1):
        raise AotairError("the alignment is no power of two", got=str(alignment))
    intervals = read_intervals(file)
    plan = plan_arena(list(intervals.values()), alignment, effort)
    if wrong := violations(list(intervals.values()), plan, alignment):
        raise InternalError(f"the plan is wrong: {wrong[0]}")
    return Planned(tuple(intervals), plan)
