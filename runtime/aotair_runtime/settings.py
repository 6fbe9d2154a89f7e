"""What a caller may set when loading an artifact."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from .devices import Limits
from .errors import ArgumentError
from .schema import Options

KEPT_GRAPHS = 4


@dataclass(frozen=True)
class Settings:
    """The options of `load`, resolved: see there."""

    clone_input: bool = True
    enable_output_clone: bool = False
    disable_mempool_reuse_in_same_fx: bool = False
    capture: str | tuple[str, ...] = "all"
    kept_graphs: int = KEPT_GRAPHS
    limits: Limits = field(default_factory=Limits)
    memory_budget: int | float | None = None
    allow_namespaces: tuple[str, ...] = ()

    @property
    def apart(self) -> bool:
        """Whether each bucket has memory of its own."""
        return self.disable_mempool_reuse_in_same_fx


def settle(
    stored: Options,
    *,
    clone_input: bool | None = None,
    enable_output_clone: bool | None = None,
    disable_mempool_reuse_in_same_fx: bool | None = None,
    capture: str | Sequence[str] = "all",
    kept_graphs: int = KEPT_GRAPHS,
    limits: Limits | None = None,
    memory_budget: int | float | None = None,
    allow_namespaces: Sequence[str] = (),
) -> Settings:
    """The settings of one load: what the caller gave, else what the recipe `stored`. Raises ArgumentError."""
    if kept_graphs < 1:
        raise ArgumentError("kept_graphs is too small", expected="at least 1", got=str(kept_graphs))
    if (isinstance(memory_budget, float) and not 0 < memory_budget <= 1) or memory_budget == 0:
        raise ArgumentError(
            "memory_budget is no amount",
            expected="bytes (int), or a share of the device (float)",
            got=str(memory_budget),
        )
    choose = lambda given, otherwise: otherwise if given is None else given  # noqa: E731
    return Settings(
        choose(clone_input, stored.clone_input),
        choose(enable_output_clone, stored.enable_output_clone),
        choose(disable_mempool_reuse_in_same_fx, stored.disable_mempool_reuse_in_same_fx),
        capture if capture in ("all", "lazy") else (capture,) if isinstance(capture, str) else tuple(capture),
        kept_graphs,
        limits or Limits(),
        memory_budget,
        tuple(allow_namespaces),
    )
