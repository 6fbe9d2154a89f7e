"""What torch.export assumed of sizes while it traced, from which line, and whether it holds for others."""

import contextlib
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ..errors import line_of

_TOLD = "_log_guard"  # the method of ShapeEnv that is told of each guard


@dataclass(frozen=True)
class Assumption:
    """A condition, in terms of the recipe's dimensions, and ` (model.py:12, in forward)` or nothing."""

    text: str
    line: str

    def __str__(self) -> str:
        return f"the graph of other sizes assumes {self.text}{self.line}"


@dataclass(frozen=True)
class Size:
    """The size of an input along a dimension of the recipe, by the dimension's number: a number, or an expression."""

    dim: int
    size: int | sympy.Expr


@dataclass(frozen=True)
class Assumptions:
    """What a graph takes for granted: `sizes` of its inputs, `replaced` symbols, `ranges` of those that are left, and
    `guards`, with the line of the model by the text of each."""

    dims: tuple[str, ...]
    sizes: tuple[Size, ...]
    replaced: Mapping[sympy.Symbol, sympy.Expr] = field(default_factory=dict)
    ranges: Mapping[sympy.Symbol, tuple[sympy.Expr, sympy.Expr]] = field(default_factory=dict)
    guards: tuple[sympy.Basic, ...] = ()
    lines: Mapping[str, str] = field(default_factory=dict)

    def why_not(self, sizes: Sequence[int]) -> Assumption | None:
        """What does not hold where the dimensions have these sizes, or None."""
        values: dict[sympy.Symbol, int] = {}
        for item in self.sizes:
            if not isinstance(item.size, int) and (found := solved(item.size, sizes[item.dim])) is not None:
                values.setdefault(*found)
        for item in self.sizes:
            size = item.size if isinstance(item.size, int) else item.size.xreplace(_integers(values))
            if size != sizes[item.dim]:
                return self._pinned(item, {**values, **self._symbols_of(item, sizes)})
        for symbol, expr in self.replaced.items():
            value = expr.xreplace(_integers(values))
            if value.is_Integer:
                values.setdefault(symbol, int(value))
        if (wrong := self._wrong(values)) is not None:
            return self._of(wrong)
        for symbol, (low, high) in self.ranges.items():
            if symbol in values and not low <= values[symbol] <= high:
                return Assumption(f"{low} <= {self._named(symbol)} <= {high}", "")
        return None

    def _symbols_of(self, item: Size, sizes: Sequence[int]) -> dict[sympy.Symbol, int]:
        """The symbols that a pinned size was before, with the size that it has now."""
        return {symbol: sizes[item.dim] for symbol, expr in self.replaced.items() if expr == item.size}

    def _pinned(self, item: Size, values: Mapping[sympy.Symbol, int]) -> Assumption:
        wrong = next((g for g in self.guards if _fails(g, values) and str(g) in self.lines), None)
        size = item.size if isinstance(item.size, int) else self._named(item.size)
        return Assumption(f"{self.dims[item.dim]} = {size}", "" if wrong is None else self.lines[str(wrong)])

    def _wrong(self, values: Mapping[sympy.Symbol, int]) -> sympy.Basic | None:
        """The first guard that does not hold, one whose line is known where there is such."""
        wrong = [guard for guard in self.guards if not _holds(guard, values)]
        return next((guard for guard in wrong if self.lines.get(str(guard))), wrong[0] if wrong else None)

    def _of(self, guard: sympy.Basic) -> Assumption:
        return Assumption(str(self._named(guard)), self.lines.get(str(guard), ""))

    def _named(self, expr: sympy.Basic) -> sympy.Basic:
        """The expression with dimensions in the place of symbols."""
        names: dict[sympy.Symbol, sympy.Symbol] = {}
        for item in self.sizes:
            if isinstance(item.size, sympy.Symbol):
                names.setdefault(item.size, sympy.Symbol(self.dims[item.dim], integer=True, positive=True))
        return expr.xreplace(names)


def assumptions_of(
    sizes: Sequence[Size], dims: tuple[str, ...], shapes: ShapeEnv | None, lines: Mapping[str, str]
) -> Assumptions:
    """Those of a graph whose inputs have these sizes, and whose symbols are of `shapes` (None: it has none)."""
    if shapes is None:
        return Assumptions(dims, tuple(sizes))
    ranges = {symbol: (found.lower, found.upper) for symbol, found in shapes.var_to_range.items()}
    guards = tuple(guard.expr for guard in shapes.guards)
    return Assumptions(dims, tuple(sizes), dict(shapes.replacements), ranges, guards, dict(lines))


def solved(size: sympy.Expr, wanted: int) -> tuple[sympy.Symbol, int] | None:
    """The only symbol of a linear size, and the value that makes it `wanted`; None where there is no such."""
    if len(size.free_symbols) != 1:
        return None
    (symbol,) = size.free_symbols
    slope = size.diff(symbol)
    start = size.xreplace({symbol: sympy.Integer(0)})
    if not (slope.is_Integer and start.is_Integer) or slope == 0 or (wanted - start) % slope:
        return None
    return symbol, int((wanted - start) // slope)


def _holds(guard: sympy.Basic, values: Mapping[sympy.Symbol, int]) -> bool:
    found = guard.xreplace(_integers(values))
    return found is sympy.true or found == sympy.true or (found.is_number and bool(found))


def _fails(guard: sympy.Basic, values: Mapping[sympy.Symbol, int]) -> bool:
    found = guard.xreplace(_integers(values))
    return found is sympy.false or found == sympy.false


def _integers(values: Mapping[sympy.Symbol, int]) -> dict[sympy.Symbol, sympy.Integer]:
    return {symbol: sympy.Integer(value) for symbol, value in values.items()}


@contextlib.contextmanager
def guard_lines() -> Iterator[dict[str, str]]:
    """Within the block, the line of the model from which each assumption comes, by the assumption's text. torch itself
    remembers only lines of its own."""
    lines: dict[str, str] = {}
    original = getattr(ShapeEnv, _TOLD)

    def remember(self: ShapeEnv, prefix: str, guard: sympy.Basic, *args: object, **kwargs: object) -> None:
        lines.setdefault(str(guard), line_of(traceback.extract_stack()))
        original(self, prefix, guard, *args, **kwargs)

    setattr(ShapeEnv, _TOLD, remember)
    try:
        yield lines
    finally:
        setattr(ShapeEnv, _TOLD, original)


def shape_env(value: torch.Tensor) -> ShapeEnv | None:
    """Where the symbols of a fake tensor's sizes come from; None where it has none."""
    sizes: tuple[int | torch.SymInt, ...] = value.shape
    symbolic = next((size for size in sizes if isinstance(size, torch.SymInt)), None)
    return None if symbolic is None else symbolic.node.shape_env
