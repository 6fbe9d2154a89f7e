"""What replaying golden tensors and swapping weights need of a loaded model."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from ..artifact.open import Artifact
from ..call.entry import Entry
from ..format.schema import Program


class Loaded(Protocol):
    """A loaded artifact; `aotair_runtime.Model` is one."""

    artifact: Artifact
    entry_points: dict[str, Entry]

    @property
    def program(self) -> Program: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def state(self) -> Mapping[str, torch.Tensor]: ...

    def reset_state(self) -> None: ...

    def synchronize(self) -> None: ...

    def on_all_ranks(self, what: str) -> AbstractContextManager[None]: ...

    def close(self) -> None: ...
