"""For a while, functions of ours in the tables by whose names transformers' models choose masks and attention."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any


@contextlib.contextmanager
def instead(table: Any, functions: Mapping[str, Callable[..., object]]) -> Iterator[None]:
    """Within the block, `table` (transformers' GeneralInterface) gives these functions; then what it gave before."""
    had = {name: table._local_mapping.get(name) for name in functions}
    for name, function in functions.items():
        table[name] = function
    try:
        yield
    finally:
        for name, before in had.items():
            if before is None:
                del table[name]
            else:
                table[name] = before
