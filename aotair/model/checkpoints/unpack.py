"""Whole numbers out of the words that they are packed into, in ops that an export sees."""

import torch
from torch import Tensor


def unpacked(words: Tensor, bits: int, *, interleaved: bool = False) -> Tensor:
    """The numbers of int32 words (rows, count) as int8 (rows, count * 32 / bits), each less 2**(bits - 1).

    The first lies in the lowest bits; `interleaved`: as AWQ packs eight numbers of 4 bits, 0 2 4 6 1 3 5 7.
    """
    places = torch.arange(0, 32, bits, dtype=torch.int32, device=words.device)
    if interleaved:
        places = places.view(2, 4).t().reshape(8)
    numbers = (words.unsqueeze(2) >> places) & (2**bits - 1)
    less: Tensor = numbers - 2 ** (bits - 1)
    return less.to(torch.int8).flatten(1)


def halves(pairs: Tensor) -> Tensor:
    """The two numbers of 4 bits with a sign in each int8 (rows, count), the lower first: int8 (rows, count * 2)."""
    wide = pairs.to(torch.int32).unsqueeze(2)
    places = torch.arange(28, 20, -4, dtype=torch.int32, device=pairs.device)
    return ((wide << places) >> 28).to(torch.int8).flatten(1)


def where_all(holds: Tensor, scale: Tensor) -> Tensor:
    """The scale, or NaN where `holds` does not hold: a checkpoint that is loaded later and lies otherwise makes the
    outputs NaN, and is not taken."""
    return torch.where(holds.all(), scale, torch.full_like(scale, torch.nan))


def by_groups(
    x: Tensor, rows: Tensor, scale: Tensor, groups_of: Tensor | None, sorts: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """x, rows (out, in) and their scale (out, groups) with groups that are neighbours: `groups_of` (in,) names that of
    each input, and where it `sorts` them, inputs are sorted by it."""
    if groups_of is None:
        return x, rows, scale
    if sorts:
        groups_of, order = torch.sort(groups_of, stable=True)
        x, rows = x.index_select(-1, order), rows.index_select(1, order)
    return x, rows, where_all(groups_of == neighbours(groups_of, scale.shape[1]), scale)


def neighbours(groups_of: Tensor, groups: int) -> Tensor:
    """The group of each input where groups are neighbours."""
    count = groups_of.shape[0]
    places = torch.arange(count, dtype=groups_of.dtype, device=groups_of.device)
    return torch.div(places, count // groups, rounding_mode="floor")


def order_fault(name: str, groups_of: Tensor, groups: int) -> str:
    """What is wrong with the groups that inputs are said to belong to; empty where nothing is."""
    least, most = int(groups_of.min()), int(groups_of.max())
    if not 0 <= least <= most < groups:
        return f"{name} names groups from {least} to {most}, and there are {groups}"
    if groups_of.long().bincount(minlength=groups).unique().numel() != 1:
        return f"{name} puts more inputs into one group than into another"
    return ""
