"""The part of a planning problem where most is alive: planned first, with the rest around it.

Near the largest live sum hardly a byte may be wasted; elsewhere there is room. What does not live there is forgotten,
which makes the problem small: intervals that then meet the same others become one.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from ..interval import Columns, Interval
from .sections import Sections, sections


@dataclass(frozen=True)
class Peak:
    """`items`, alive as `parts` says, stand for `groups` of the whole problem's intervals."""

    items: Columns
    parts: Sections
    groups: tuple[tuple[int, ...], ...]


def peak(items: Columns, parts: Sections, level: float) -> Peak:
    """The intervals that live where more than `level` is alive; each group lists the longest first.

    What is fixed belongs to it wherever it lives: those of the peak may live longer, and meet it. It, and what has an
    alignment of its own, stays a group of one.
    """
    crowded = np.concatenate(([0], np.cumsum(np.array(parts.sums(items.sizes.tolist())) > level)))
    touching = ((crowded[list(parts.high)] > crowded[list(parts.low)]) | (items.fixed >= 0)) & (items.sizes > 0)
    members = np.flatnonzero(touching)[np.lexsort((items.first[touching] - items.last[touching],))].tolist()
    inner = sections([Interval(0, int(items.first[i]), int(items.last[i])) for i in members])
    alone = (items.fixed >= 0) | (items.alignments > items.alignment)
    groups: dict[tuple[int, int, int], list[int]] = {}
    for index, low, high in zip(members, inner.low, inner.high):
        groups.setdefault((low, high, index if alone[index] else -1), []).append(index)
    leaders = [group[0] for group in groups.values()]
    low, high = np.array(list(groups), np.int64).reshape(-1, 3).T[:2]
    sizes = np.array([items.sizes[group].sum() for group in groups.values()], np.int64)
    merged = Columns(items.alignment, sizes, low, high - 1, items.fixed[leaders], items.alignments[leaders])
    return Peak(
        merged, Sections(tuple(low.tolist()), tuple(high.tolist()), inner.count), tuple(map(tuple, groups.values()))
    )


def held_at_peaks(items: Columns, found: Peak, offsets: Iterable[int]) -> Columns:
    """`items` with those of the peak fixed where its plan has them: each group from its offset up."""
    fixed = items.fixed.copy()
    for group, offset in zip(found.groups, offsets, strict=True):
        members = list(group)
        fixed[members] = offset + np.cumsum(items.sizes[members]) - items.sizes[members]
    return replace(items, fixed=fixed)
