"""The `buckets` of a recipe's file replaced, and every other byte of it kept."""

import itertools
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from aotair_runtime.errors import AotairError

from ..disk.place import new_file
from ..recipe.read import parse_recipe
from .points import Bucket

_WIDTH = 110

Plain = dict[str, list[int]] | list[dict[str, int]]


def as_plain(dims: Sequence[str], buckets: Sequence[Bucket]) -> Plain:
    """What stands under `buckets`: sizes by dimension where the set is their product, else a list of buckets."""
    columns = [sorted({bucket[axis] for bucket in buckets}) for axis in range(len(dims))]
    if set(itertools.product(*columns)) == set(buckets):
        return dict(zip(dims, columns))
    return [dict(zip(dims, bucket)) for bucket in sorted(buckets)]


def block(plain: Plain, indent: str = "  ") -> str:
    """The value as YAML in lines."""
    if isinstance(plain, dict):
        return "\n".join(_wrapped(f"{indent}{dim}: [{', '.join(map(str, one))}]", indent) for dim, one in plain.items())
    return "\n".join(f"{indent}- {_flow(one)}" for one in plain)


def replaced(text: str, plain: Plain, where: str, place: Sequence[str] = ("buckets",)) -> str:
    """The recipe's text with other buckets at `place`. Raises AotairError where more would have to change."""
    start, end, flow, column = _span(text, where, place)
    newline = "\r\n" if "\r\n" in text else "\n"
    new = _flow(plain) if flow else block(plain, " " * (column or 2))[column:].replace("\n", newline)
    changed = text[:start] + new + text[end:]
    try:
        before, after = yaml.safe_load(text), yaml.safe_load(changed)
        if after != _with(before, plain, place) or list(after) != list(before):
            raise ValueError("other parts of the recipe would change")
        parse_recipe(after, Path(where))
    except (yaml.YAMLError, ValueError) as error:
        raise _unsafe(where, str(error).splitlines()[0]) from error
    return changed


def _with(data: dict[str, Any], plain: Plain, place: Sequence[str]) -> dict[str, object]:
    """The recipe's data with another value at `place`."""
    first, *rest = place
    return {**data, first: _with(data[first], plain, rest) if rest else plain}


def write(file: Path, plain: Plain, place: Sequence[str] = ("buckets",)) -> None:
    """Replace the buckets at `place` in a recipe's file, as a whole."""
    target = file.resolve()
    try:
        text = target.read_bytes().decode("utf-8")
        changed = replaced(text, plain, str(file), place)
        with new_file(target) as aside:
            aside.write_bytes(changed.encode("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise AotairError(f"the recipe cannot be written: {error}", where=str(file)) from error


def _span(text: str, where: str, place: Sequence[str]) -> tuple[int, int, bool, int]:
    """Where the value at `place` starts and ends, whether it is in flow style, and its column."""
    if text.startswith("\ufeff"):
        raise _unsafe(where, "the file starts with a byte order mark")
    try:
        root = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise _unsafe(where, "the file is not YAML") from error
    key, value = None, root
    for name in place:
        members = value.value if isinstance(value, yaml.MappingNode) else []
        found = [(key, member) for key, member in members if key.value == name]
        if len(found) != 1 or (isinstance(root, yaml.CollectionNode) and root.flow_style):
            raise _unsafe(where, f"there are {len(found)} blocks {'.'.join(place)}")
        key, value = found[0]
    assert key is not None and value is not None, "a place has a name"
    start, end = value.start_mark.index, _end(value)
    if start < key.end_mark.index:
        raise _unsafe(where, "buckets stands for another part of the file")
    if text[key.end_mark.index : start].split("#")[0].strip() != ":":
        raise _unsafe(where, "buckets has an anchor or a tag")
    if "#" in text[start:end]:
        raise _unsafe(where, "there are comments among the buckets")
    flow = isinstance(value, yaml.CollectionNode) and bool(value.flow_style)
    return start, end, flow, value.start_mark.column


def _end(node: yaml.Node) -> int:
    """Where the last character of a node is; PyYAML's own mark of a block lies behind what follows it."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return node.end_mark.index


def _flow(plain: object) -> str:
    return yaml.safe_dump(plain, default_flow_style=True, sort_keys=False, width=10**9).strip()


def _wrapped(line: str, indent: str) -> str:
    return textwrap.fill(line, _WIDTH, subsequent_indent=f"{indent}  ", break_long_words=False)


def _unsafe(where: str, what: str) -> AotairError:
    return AotairError(
        f"the buckets cannot be replaced safely: {what}",
        where=where,
        expected="a block `buckets:` of its own, without comments or anchors in it",
        fix="leave out --write and paste the block that is printed",
    )
