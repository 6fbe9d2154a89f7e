"""Is `aotair-kernels` installed here, which makes small ops one after the other in one call, and how is it called?

It has to share torch's threads, and to know steps as this runtime writes them.
"""

import ctypes
import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path

from ..devices.onednn_library import shares_threads
from .written import LAYOUT

_PACKAGE, _FILE = "aotair_kernels", "libaotair_kernels.so"

Run = Callable[[int, int, int], int]  # of the address of the first step, their number and threads: how many were made


def run() -> Run | None:
    """The library's call; None where there is no library that will do."""
    found, _ = _found()
    return None if found is None else found.aotair_kernels_run


def level() -> str:
    """The instructions that the library uses here; empty where there is none."""
    found, _ = _found()
    return "" if found is None else found.aotair_kernels_level().decode("ascii")


def is_wide() -> bool:
    """Whether the library has registers of sixteen numbers here: its products are slower than torch's with others."""
    return level().startswith("AVX-512")


def multiplies_pairs() -> bool:
    """Whether the processor has products of two numbers of bfloat16 at a time, and the library uses them."""
    return level().endswith("bfloat16")


def why_none() -> str:
    """Why there is no library; empty where there is one."""
    return _found()[1]


@functools.cache
def _found() -> tuple[ctypes.CDLL | None, str]:
    spec = importlib.util.find_spec(_PACKAGE)
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    if not folders:
        return None, "not installed: pip install aotair-kernels"
    path = Path(folders[0], _FILE)
    try:
        lib = ctypes.CDLL(str(path))
        layout = lib.aotair_kernels_layout
        layout.restype = ctypes.c_int64
        if layout() != LAYOUT:
            return None, f"{path} is of another version than this runtime"
        lib.aotair_kernels_run.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int]
        lib.aotair_kernels_run.restype = ctypes.c_int64
        lib.aotair_kernels_level.restype = ctypes.c_char_p
    except (OSError, AttributeError) as error:
        return None, f"{path} cannot be used: {error}"
    return (lib, "") if shares_threads(lib) else (None, f"{path} has threads of its own, beside torch's")
