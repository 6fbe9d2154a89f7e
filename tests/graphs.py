"""Small graphs for the tests of passes: traced with fake tensors, run before and after, shown as text."""

import logging
from collections.abc import Callable

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from aotair.graph.show import show
from aotair.passes.edits import Edits
from aotair.target.target import Target


def trace(function: Callable, *inputs: torch.Tensor) -> torch.fx.GraphModule:
    """The graph of a function that returns a tuple of tensors, every node with a fake tensor."""
    return make_fx(function, tracing_mode="fake")(*inputs)


def targets(module: torch.fx.GraphModule) -> list[str]:
    return [str(n.target) for n in module.graph.nodes if n.op == "call_function"]


def run_pass(step, module: torch.fx.GraphModule, limit: int | None = None, target: str = "cpu", **options) -> Edits:
    """Run a pass, check what it leaves, and give its account."""
    edits = Edits(step.__name__.rpartition(".")[2], Target(target), limit)
    step.run(module, edits, **options)
    module.graph.lint()
    module.recompile()
    return edits


def answers(module: torch.fx.GraphModule, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """The outputs, then the inputs afterwards."""
    given = [tensor.clone() for tensor in inputs]
    outputs = module(*given)
    return [output.clone() for output in outputs] + given


def assert_same_numbers(step, function: Callable, *inputs: torch.Tensor) -> torch.fx.GraphModule:
    """The pass changes no output and no input's new value; gives the graph it left."""
    module = trace(function, *inputs)
    want = answers(module, inputs)
    run_pass(step, module)
    for got, wanted in zip(answers(module, inputs), want, strict=True):
        assert torch.equal(got, wanted), show(module)
    return module


def reasons(caplog, step, module: torch.fx.GraphModule) -> str:
    """What the pass says at DEBUG about those it leaves alone."""
    with caplog.at_level(logging.DEBUG, logger="aotair"):
        run_pass(step, module)
    return "\n".join(record.getMessage() for record in caplog.records)
