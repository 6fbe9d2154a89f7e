"""The line of the user's code that a node came from."""

import functools
from pathlib import Path

import torch
from torch.fx.node import Node

# Torch's files, and those by which aotair shares a model out.
_OTHERS = (str(Path(torch.__file__).parent), str(Path(__file__).parent.parent / "parallel"))
_IN_NO_FILE = "<eval_with_key>"  # code that torch has made of a trace


def source(node: Node) -> str:
    """` (model.py:12, in forward)`: the user's line that a node came from, or nothing. What torch itself calls on the
    way, or aotair where it shares a model out, is none of the user's lines."""
    return _last_line(node.meta.get("stack_trace") or "")


@functools.lru_cache(maxsize=4096)
def _last_line(trace: str) -> str:
    lines = (line.strip() for line in trace.splitlines())
    files = [line for line in lines if line.startswith("File ") and _IN_NO_FILE not in line]
    files = [line for line in files if not any(other in line for other in _OTHERS)] or files
    if not files:
        return ""
    parts = files[-1].split(", ")
    name = parts[0].removeprefix('File "').rstrip('"').rsplit("/", 1)[-1]
    return f" ({name}:{parts[1].removeprefix('line ')}, {parts[2]})" if len(parts) > 2 else f" ({name})"
