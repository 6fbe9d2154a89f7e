"""The line of the user's code that a node came from."""

import functools
from pathlib import Path

import torch
from torch.fx.node import Node

_TORCH = str(Path(torch.__file__).parent)


def source(node: Node) -> str:
    """` (model.py:12, in forward)`: the user's line that a node came from, or nothing. What torch itself calls on the
    way is none of the user's lines."""
    return _last_line(node.meta.get("stack_trace") or "")


@functools.lru_cache(maxsize=4096)
def _last_line(trace: str) -> str:
    files = [line.strip() for line in trace.splitlines() if line.strip().startswith("File ")]
    files = [line for line in files if _TORCH not in line] or files
    if not files:
        return ""
    parts = files[-1].split(", ")
    name = parts[0].removeprefix('File "').rstrip('"').rsplit("/", 1)[-1]
    return f" ({name}:{parts[1].removeprefix('line ')}, {parts[2]})" if len(parts) > 2 else f" ({name})"
