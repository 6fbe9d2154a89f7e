"""Real values for the runs that prove padding: what random ones would show by chance alone.

A maximum over padding with 0 is right until all real values are negative, a test for the pad value until no real value
is it. So the real values are put on each side of the pad value, far off, among it, and at the ends of their range.
"""

from collections.abc import Callable, Mapping

import torch

from ..recipe.recipe import FLOATS, InputPart

FAR = 100.0  # how far "far off" is; rounding grows with it
_EXTREME = 1e3  # a pad value beyond is no value that real ones lie around

Tilt = Callable[[InputPart, torch.Tensor, torch.Generator], torch.Tensor]


def tilts(items: Mapping[str, InputPart]) -> tuple[str, ...]:
    """What is tried one after the other; "as they come" is first. `items` are those of `Recipe.inputs_at`."""
    return max((_of(item) for item in items.values() if item.pad is not None), key=len, default=_PLAIN)


def tilted(
    items: Mapping[str, InputPart], real: Mapping[str, torch.Tensor], number: int
) -> tuple[dict[str, torch.Tensor], str]:
    """The inputs with the real values of those that are padded moved as the tilt of that number says, and in words."""
    found, words = dict(real), {}
    for name, item in items.items():
        kinds = _of(item) if item.pad is not None else _PLAIN
        kind = kinds[number % len(kinds)]
        if kind != "as they come":
            found[name] = _TILTS[kind](item, real[name], torch.Generator().manual_seed(number))
            words[name] = kind
    return found, ", ".join(f"{name} {kind}" for name, kind in words.items())


def rounding(items: Mapping[str, InputPart], words: str) -> float:
    """By how much rounding may be greater than with values around 1: where no range holds them, far ones are great."""
    return FAR if any(f"{name} far " in words for name, item in items.items() if item.range is None) else 1.0


# ---- which -----------------------------------------------------------------------------------------------------------

_PLAIN = ("as they come",)


def _of(item: InputPart) -> tuple[str, ...]:
    if item.mask is not None:
        return (*_PLAIN, "all ones")
    if item.dtype in FLOATS:
        sides = ("below the pad value", "above the pad value", "far below the pad value", "far above the pad value")
        return (*_PLAIN, *sides, "far off on both sides", "around the pad value, with ties")
    if item.distinct:
        return _PLAIN
    if _values(item) <= 2:  # a mask, say: one that hides all is for nobody
        return (*_PLAIN, "all but the pad value")
    if item.pad == "any":
        return (*_PLAIN, "all the least", "all the greatest")
    return (*_PLAIN, "all the least", "all but the pad value", "all the greatest", "mixed with the pad value")


def _values(item: InputPart) -> int:
    low, high = item.ends
    return int(high) - int(low)


def _pad(item: InputPart) -> int | float | None:
    """The number that fills the padded part; None where any may."""
    fill = item.fill
    assert fill is not None, "only what is padded is tilted"
    return None if isinstance(fill, str) else fill


# ---- floating point --------------------------------------------------------------------------------------------------


def _pivot(item: InputPart) -> float:
    """The pad value, where real values may lie on both sides of it; else what they lie around."""
    pad = float(_pad(item) or 0)
    low, high = item.ends if item.range else (-_EXTREME, _EXTREME)
    return pad if low < pad < high else 0.0 if low < 0 < high else (low + high) / 2


def _reach(item: InputPart) -> tuple[float, float]:
    """How far real values go below and above the pivot."""
    if item.range is None:
        return 3.0, 3.0
    pivot, (low, high) = _pivot(item), item.ends
    return pivot - low, high - pivot


def _uniform(item: InputPart, real: torch.Tensor, generator: torch.Generator, low: float, high: float) -> torch.Tensor:
    """Between two shares of the reach, never the pivot itself."""
    below, above = _reach(item)
    share = low + (high - low) * torch.rand(real.shape, generator=generator, dtype=torch.float64)
    return (_pivot(item) + torch.where(share < 0, share * below, share * above)).to(real.dtype)


def _below(item: InputPart, real: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return _uniform(item, real, generator, -0.99, -0.1)


def _above(item: InputPart, real: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return _uniform(item, real, generator, 0.1, 0.99)


def _far(
    item: InputPart, real: torch.Tensor, generator: torch.Generator, sides: tuple[int, ...] = (-1, 1)
) -> torch.Tensor:
    """At the ends of the range, on these sides of the pivot; without a range, between one and two times FAR from 0."""
    side = torch.tensor(sides)[torch.randint(0, len(sides), real.shape, generator=generator)]
    if item.range is None:
        return (side * FAR * (1 + torch.rand(real.shape, generator=generator))).to(real.dtype)
    below, above = _reach(item)
    share = 0.95 + 0.049 * torch.rand(real.shape, generator=generator, dtype=torch.float64)
    return (_pivot(item) + torch.where(side < 0, -share * below, share * above)).to(real.dtype)


def _far_below(item: InputPart, real: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return _far(item, real, generator, (-1,))


def _far_above(item: InputPart, real: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return _far(item, real, generator, (1,))


def _around(item: InputPart, real: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Three values, of which the pivot is one."""
    below, above = _reach(item)
    step = 0.25 * min(below, above)
    return (_pivot(item) + step * torch.randint(-1, 2, real.shape, generator=generator)).to(real.dtype)


# ---- integers and booleans -------------------------------------------------------------------------------------------


def _ends(item: InputPart) -> tuple[int, int]:
    """The least and the greatest legal value that are not the pad value."""
    low, high = int(item.ends[0]), int(item.ends[1]) - 1
    pad = None if (number := _pad(item)) is None else int(number)
    return low + (low == pad and low < high), high - (high == pad and low < high)


def _least(item: InputPart, real: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.full_like(real, _ends(item)[0])


def _greatest(item: InputPart, real: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.full_like(real, _ends(item)[1])


def _without(item: InputPart, real: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    least, greatest = _ends(item)
    if (number := _pad(item)) is None:
        return torch.full_like(real, greatest)
    pad = int(number)
    return torch.where(real.eq(pad), torch.full_like(real, least if least != pad else greatest), real)


def _mixed(item: InputPart, real: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Every other value is the pad value, where that is legal; none in the first place of a row."""
    number, (low, high) = _pad(item), item.ends
    assert number is not None, "what is padded with any number is not tilted so"
    if not low <= (pad := int(number)) < high or not real.dim():
        return real
    mixed = _without(item, real, generator)
    mixed[..., 1::2] = pad
    return mixed


def _ones(item: InputPart, real: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.ones_like(real)


_TILTS: dict[str, Tilt] = {
    "all ones": _ones,
    "below the pad value": _below,
    "above the pad value": _above,
    "far below the pad value": _far_below,
    "far above the pad value": _far_above,
    "far off on both sides": _far,
    "around the pad value, with ties": _around,
    "all the least": _least,
    "all the greatest": _greatest,
    "all but the pad value": _without,
    "mixed with the pad value": _mixed,
}
