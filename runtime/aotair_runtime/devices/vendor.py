"""Which calls does a vendor's package make that torch names differently for each of them?"""

from types import ModuleType
from typing import Any, Protocol

from .base import Limits, Recording
from .updates import Updates


class Unfinished(Recording, Protocol):
    """A graph of torch's, to be recorded."""

    def capture_begin(self, *, pool: Any, capture_error_mode: str) -> None:
        """Record from now on; `pool` is what `graph_pool_handle` gave."""

    def capture_end(self) -> None: ...


class Vendor(Protocol):
    """The calls of one vendor that torch names differently."""

    kind: str
    api: ModuleType  # torch.cuda or torch.npu
    limits: Limits
    version: str
    updates: Updates | None  # None: what a capture recorded stays as it is

    def new_graph(self) -> Unfinished: ...

    def stream_number(self, index: int) -> int:
        """The handle of the current stream."""

    def release_pool(self, index: int, pool: tuple[int, int]) -> None:
        """Undo the use of a pool by a graph whose capture did not end."""

    def stop_allocating(self, index: int, pool: tuple[int, int]) -> None:
        """Undo the routing of allocations to a pool whose capture did not begin."""
