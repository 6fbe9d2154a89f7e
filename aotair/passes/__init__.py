"""The pipeline: every pass in order, with the reason for its place. This list is the documentation."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..config import CompilerConfig
from . import remove_dead_code, remove_noop_ops
from .observer import Observer


@dataclass(frozen=True)
class Pass:
    """A graph-to-graph step. `run` changes the graph in place and returns how many rewrites it made."""

    name: str
    run: Callable[[torch.fx.GraphModule], int]
    enabled: Callable[[CompilerConfig], bool] = lambda config: True


PIPELINE = (
    # Export leaves assertions about shapes that each bucket satisfies by construction; they would count as users.
    Pass("remove_dead_code", remove_dead_code.run),
    # Before anything that looks for patterns: a no-op between two nodes hides them from each other.
    Pass("remove_noop_ops", remove_noop_ops.run, lambda config: config.experimental_config.remove_noop_ops),
)


def apply(module: torch.fx.GraphModule, config: CompilerConfig, observer: Observer) -> None:
    """Run the pipeline over `module`, in place."""
    for step in PIPELINE:
        if step.enabled(config):
            with observer.watch(step.name, module) as record:
                record(step.run(module))
                module.graph.lint()
                module.recompile()
