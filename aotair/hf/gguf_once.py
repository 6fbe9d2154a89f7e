"""How is a GGUF file parsed once, where transformers does it anew for the configuration, the tokenizer and the weights,
and makes the table of tensors' names for each module?"""

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Version = tuple[int, ...]  # of a file: another one once it has changed


@contextlib.contextmanager
def parsed_once(version: Version) -> Iterator[None]:
    """Within the block, and in later ones for the same file, until `forget`."""
    gguf: Any = importlib.import_module("gguf")
    reader, names = gguf.GGUFReader, gguf.get_tensor_name_map
    gguf.GGUFReader = lambda path: _parsed(reader, Path(path), version)
    gguf.get_tensor_name_map = functools.cache(names)
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = reader, names


def forget() -> None:
    """Let go of the last file."""
    _parsed.cache_clear()


@functools.lru_cache(maxsize=1)
def _parsed(reader: Callable[[Path], Any], path: Path, version: Version) -> Any:
    return reader(path)
