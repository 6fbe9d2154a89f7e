"""Many names as a few words: those that differ by a number alone are said once, `layers.{0-29}.norm.weight`."""

import re
from collections.abc import Iterable, Mapping, Sequence

_NUMBER = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")


def listed(names: Iterable[str]) -> str:
    """All names, shortened."""
    whole = [tuple(_split(name)) for name in names]
    width = max(map(len, whole), default=0)
    for place in range(1, width, 2):  # numbers stand between texts
        whole = _joined(whole, place)
    return ", ".join("".join(parts) for parts in whole) or "none"


def listed_by_file(names: Sequence[str], files: Mapping[str, str]) -> str:
    """All names, shortened, under the files in which they lie."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(files[name], []).append(name)
    return "; ".join(f"{listed(held)} (in {file})" for file, held in found.items()) or "none"


def _split(name: str) -> list[str]:
    """Texts and the numbers between them, by turns."""
    parts, end = [], 0
    for match in _NUMBER.finditer(name):
        parts += [name[end : match.start()], match[0]]
        end = match.end()
    return [*parts, name[end:]]


def _joined(names: Sequence[tuple[str, ...]], place: int) -> list[tuple[str, ...]]:
    """Those that are equal but for the number at that place become one."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        key = (*name[:place], "", *name[place + 1 :]) if place < len(name) else name
        groups.setdefault(key, []).append(name[place] if place < len(name) else "")
    return [
        (*key[:place], _ranges(numbers), *key[place + 1 :]) if place < len(key) else key
        for key, numbers in groups.items()
    ]


def _ranges(texts: Sequence[str]) -> str:
    """`{0-3,5}` for 0, 1, 2, 3 and 5; a single one as it is."""
    if len(texts) == 1:
        return texts[0]
    runs: list[list[int]] = []
    for number in sorted({int(text) for text in texts}):
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    said = (f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return "{" + ",".join(said) + "}"
