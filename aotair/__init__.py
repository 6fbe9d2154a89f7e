"""aotair: build a PyTorch model ahead of time into an artifact, and replay it.

`load` comes with the lean runtime at once; everything that builds is imported at its first use.
"""

from typing import TYPE_CHECKING

from aotair_runtime import AotairError, Limits, Model, Pool, TrustPolicy, Verdict, __version__, check, graph_pool, load
from aotair_runtime.artifact import ops as _runtime_ops

from .log import logger

if TYPE_CHECKING:
    from .builder import build
    from .fusion import register_replacement
    from .ops.naming import host_as_npu
    from .recipe.config import CompilerConfig
    from .recipe.recipe import Recipe

__all__ = [
    "AotairError",
    "CompilerConfig",
    "Limits",
    "Model",
    "Pool",
    "Recipe",
    "TrustPolicy",
    "Verdict",
    "__version__",
    "build",
    "check",
    "graph_pool",
    "host_as_npu",
    "load",
    "logger",
    "register_replacement",
]

_LAZY = {
    "build": "builder",
    "CompilerConfig": "recipe.config",
    "Recipe": "recipe.recipe",
    "register_replacement": "fusion",
    "host_as_npu": "ops.naming",
}


def _host_ops() -> None:
    """Define the ops of torch_npu that the host lacks: an artifact for an NPU is being loaded on the CPU."""
    from .ops import npu  # noqa: F401


_runtime_ops.provide(("npu", "air"), _host_ops)


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'aotair' has no attribute {name!r}")
    import importlib

    try:
        module = importlib.import_module(f".{_LAZY[name]}", __name__)
    except ModuleNotFoundError as error:
        if error.name in ("pydantic", "yaml", "rich", "click"):
            raise ImportError(f"aotair.{name} needs the builder's packages: pip install 'aotair[build]'") from error
        raise
    return getattr(module, name)
