"""What the runtime asks of a device."""

from collections.abc import Callable
from typing import Protocol

import torch


class Graph(Protocol):
    """Recorded launches at fixed addresses."""

    def replay(self) -> None:
        """Launch everything that was recorded."""

    def reset(self) -> None:
        """Give back what the recording holds."""


class Device(Protocol):
    kind: str
    torch_device: torch.device

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Uninitialised memory: uint8, 1-D, aligned to at least 64 bytes."""

    def place(self, constant: torch.Tensor) -> torch.Tensor:
        """A mapped constant where the device can read it: itself where possible, else a copy."""

    def capture(self, run: Callable[[], None]) -> Graph:
        """Record what `run` launches."""
