"""What does each rank do with an artifact of several ranks? Functions for `ranks.Ranks`."""

import simcann
import simnpu
import torch

import aotair_runtime
from aotair.ops import npu
from aotair_runtime.weights.golden import replay_golden


def calls(path: str, inputs: list[torch.Tensor], seeds: int, other: str) -> dict[str, object]:
    """The answers to inputs, as captured and in random orders; the golden tensors; and with other weights."""
    with aotair_runtime.load(path, rank_timeout=60, enable_output_clone=True) as model:
        before = simcann.collectives()
        found: dict[str, object] = {"answers": [_answer(model, one) for one in inputs]}
        found["collectives"] = simcann.collectives() - before
        orders = []
        for seed in range(1, seeds + 1):
            with simcann.schedule(seed):
                orders += [_answer(model, one) for one in inputs]
        found["orders"] = orders
        found["golden"] = [result.within for result in replay_golden(model)]
        model.load_weights(other)
        found["other"] = [_answer(model, one) for one in inputs]
        found["captures"] = model.stats().captures
    return found


def _answer(model: aotair_runtime.Model, given: torch.Tensor) -> torch.Tensor:
    model.reset_state()
    made = model(given.to(model.device))
    model.synchronize()
    return made.cpu()


def driven(path: str, calls: list[tuple[object, ...]]) -> list[torch.Tensor]:
    """Of calls that the first rank makes for all; none on the others. Lists go as they are."""
    _fused_ops()
    with aotair_runtime.load(path, rank_timeout=60, enable_output_clone=True) as model:
        if not model.drives:
            model.follow()
            return []
        with model.driver() as driver:
            placed = [
                [one.to(model.device) if isinstance(one, torch.Tensor) else one for one in call] for call in calls
            ]
            return [driver(*call).cpu() for call in placed]


def _fused_ops() -> None:
    """Let the simulated device make fused ops as the host does."""
    simnpu.register_fused({op.name: op.kernel for op in npu.OPS})


def _on(device: torch.device, value: object) -> object:
    return value.to(device) if isinstance(value, torch.Tensor) else value


def answers(path: str, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Of a model without states."""
    _fused_ops()
    with aotair_runtime.load(path, rank_timeout=60, enable_output_clone=True) as model:
        return [model(one.to(model.device)).cpu() for one in inputs]


def own_answers(path: str, inputs: list[list[torch.Tensor]], seeds: int) -> dict[str, object]:
    """The answers to the inputs that this rank has for itself, as captured and in random orders."""
    _fused_ops()
    before, held = simcann.communicators(), simcann.reserved_bytes()
    with aotair_runtime.load(path, rank_timeout=60, enable_output_clone=True) as model:
        found: dict[str, object] = {"answers": [_answer(model, one) for one in inputs[model.rank]]}
        orders = []
        for seed in range(1, seeds + 1):
            with simcann.schedule(seed):
                orders += [_answer(model, one) for one in inputs[model.rank]]
        found["orders"], found["calls"] = orders, [bucket.calls for bucket in model.stats().buckets]
        found["communicators"] = simcann.communicators() - before
        found["buffers"] = simcann.reserved_bytes() - held
        found["promised"] = {item.name: item.nbytes for item in model.promise.items}["buffers of communicators"]
    return found
