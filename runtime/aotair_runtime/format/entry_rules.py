"""Whether an entry point keeps the rules of the format: its inputs, outputs, dimensions and structure."""

from .demands import MAX_BYTES, Demands
from .dotted_names import PLAIN
from .schema import EntryPoint, Expr, Input, Tree
from .structure import children
from .torch_names import dtype


class EntryRules(Demands):
    """The rules of entry points; their buckets have rules of their own."""

    def entry_point(self, entry: EntryPoint, path: str) -> None:
        self.require(bool(entry.buckets), f"{path}.buckets", "at least one bucket")
        for i, spec in enumerate(entry.inputs):
            self.require(spec.kind in ("user", "mutated"), f"{path}.inputs[{i}].kind", "user or mutated", spec.kind)
            dtype(spec.dtype, self.where)
            self.require(
                not spec.host or _may_be_host(spec), f"{path}.inputs[{i}]", "a host input of int64, with a range", spec
            )
            fits = spec.pad is None or spec.pad == "any" or isinstance(spec.pad, (bool, int, float))
            self.require(fits, f"{path}.inputs[{i}].pad", "a number, 'any' or nothing", spec.pad)
            for expr in spec.shape:
                self.expr(expr, entry, f"{path}.inputs[{i}].shape", plain=True)
        seen = {expr[1] for spec in entry.inputs for expr in spec.shape if isinstance(expr, tuple)}
        self.require(
            seen == set(range(len(entry.dims))), f"{path}.dims", "dimensions that the inputs show", len(entry.dims)
        )
        for i, dim in enumerate(entry.dims):
            self.require(0 <= dim.least < MAX_BYTES, f"{path}.dims[{i}].least", "a possible size", dim.least)
        for i, output in enumerate(entry.outputs):
            dtype(output.dtype, self.where)
            for expr in output.shape:
                self.expr(expr, entry, f"{path}.outputs[{i}].shape")
        self.tree(entry.structure, len(entry.outputs), f"{path}.structure")
        self.arguments(entry, path)
        order = sorted(entry.capture_order)
        self.require(
            order == list(range(len(entry.buckets))), f"{path}.capture_order", "each bucket once", entry.capture_order
        )

    def arguments(self, entry: EntryPoint, path: str) -> None:
        """The names of inputs and constants differ, and none lies within another."""
        names = [*(spec.name for spec in entry.inputs), *(name for name, _ in entry.constants)]
        inner = {name[:end] for name in names for end, sign in enumerate(name) if sign == "."}
        fits = len(set(names)) == len(names) and not inner & set(names)
        self.require(fits, f"{path}.inputs", "names of their own, none within another", names)
        for name, value in entry.constants:
            self.require(isinstance(value, PLAIN), f"{path}.constants", f"a plain value for {name}", value)

    def expr(self, expr: Expr, entry: EntryPoint, path: str, *, plain: bool = False) -> None:
        if isinstance(expr, int):
            self.require(expr >= 0 or not plain, path, "a size", expr)
            return
        if expr[0] == "dim":
            self.index(expr[1], len(entry.dims), path)
            return
        self.require(not plain, path, "a number or a dimension", expr)
        operator, *operands = expr
        for operand in operands:
            self.expr(operand, entry, path)
        if operator in ("//", "%"):
            self.require(all(isinstance(o, int) and o > 0 for o in operands[1:]), path, "a positive divisor", expr)

    def tree(self, tree: Tree, count: int, path: str) -> None:
        if tree[0] == "tensor":
            self.index(tree[1], count, path)
        elif tree[0] != "const":
            if tree[0] == "named":
                fits = len({*tree[2]}) == len(tree[2]) and all(map(_is_public, tree[2])) and tree[1].isidentifier()
                self.require(fits, path, "the names of a named tuple", tree[1:3])
            for child in children(tree):
                self.tree(child, count, path)


def _is_public(name: str) -> bool:
    return name.isidentifier() and not name.startswith("_")


def _may_be_host(spec: Input) -> bool:
    low, high = spec.value_range if spec.value_range and len(spec.value_range) == 2 else (0, 0)
    plain = spec.kind == "user" and spec.dtype == "int64" and len(spec.shape) == 1
    return plain and -MAX_BYTES < low < high < MAX_BYTES and (spec.pad in (None, "any") or type(spec.pad) is int)
