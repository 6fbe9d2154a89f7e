"""What each rank of `benchmarks.ranks` does, in a process of its own, which writes what it found as JSON."""

import argparse
import json
import os
import random
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import aotair_runtime as aotair
from aotair_runtime.errors import AotairError, OutputHeldWarning, RankError
from aotair_runtime.format.mesh import ranks_of, replica_of

from .common import host_microseconds

warnings.filterwarnings("ignore", category=OutputHeldWarning)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["tokens", "orders", "meet", "calls", "lost", "host", "torchair"])
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, help="a list of lists of tokens, as JSON")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--lost", type=int, default=-1)
    parser.add_argument("--at", type=int, default=0)
    parser.add_argument("--how", choices=["kill", "stop"], default="kill")
    parser.add_argument("--device", choices=["cpu", "npu"], default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.device == "npu":  # this process has the simulated NPU: see tests/simnpu/run.py
        from .decoders import _install_simulated

        _install_simulated()
    found = globals()[f"_{given.what}"](given)
    given.out.with_suffix(f".{os.environ['RANK']}.json").write_text(json.dumps(found))


def _tokens(given: argparse.Namespace) -> dict[str, Any]:
    from examples.generate import generate

    from .decoders import TOKENS

    with aotair.load(given.artifact, device=given.device, enable_output_clone=True, rank_timeout=120) as served:
        weights = next(item.nbytes for item in served.promise.items if item.name == "weights")
        prompts = json.loads(given.prompts.read_text())
        first, end = _own_prompts(served, len(prompts))
        return {"tokens": generate(served, prompts[first:end], TOKENS), "prompts": [first, end], "weights": weights}


def _orders(given: argparse.Namespace) -> dict[str, int]:
    """In how many of `count` random orders of a simulated NPU's streams a logit of prompts and the two tokens behind
    them is another one than in the order of the capture."""
    import simnpu

    with aotair.load(given.artifact, device="npu", enable_output_clone=True, rank_timeout=120) as served:
        prompts = json.loads(given.prompts.read_text())
        want, wrong = _logits(served, prompts), 0
        for seed in range(1, given.count + 1):
            with simnpu.schedule(seed):
                wrong += not all(map(torch.equal, _logits(served, prompts), want))
        return {"wrong": wrong}


def _logits(served: aotair.Model, prompts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Of each call that makes three tokens for each prompt."""
    from examples.generate import generate

    found: list[torch.Tensor] = []

    def kept(call: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def run(*given: torch.Tensor) -> torch.Tensor:
            found.append(call(*given))
            return found[-1]

        return run

    heard: Any = SimpleNamespace(device=served.device, prefill=kept(served.prefill), decode=kept(served.decode))
    generate(heard, prompts, 3)
    return found


def _own_prompts(served: aotair.Model, count: int) -> tuple[int, int]:
    """Which of so many prompts this rank generates for: all, or its share where ranks have inputs of their own. The
    first has fewer, so that no two run alike."""
    program = served.program
    places = [replica_of(program.mesh, program.own_inputs, rank) for rank in range(ranks_of(program.mesh))]
    number, of = sorted({*places}).index(places[served.rank]), len({*places})
    return count * number // of - (number > 0), count * (number + 1) // of - (number + 1 < of)


def _meet(given: argparse.Namespace) -> dict[str, Any]:
    """Seconds until all have met, and microseconds of a bucket's agreement: the median of 20 rounds of many."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.barrier()
    with aotair.load(given.artifact, rank_timeout=60) as model:
        meeting = next(phase.seconds for phase in model.phases if phase.name == "meet the other ranks")
        party = model._party
        assert party is not None
        times = []
        for _ in range(20):
            start = time.perf_counter()
            for _ in range(given.count // 20):
                party.agree(0, (1, 4))
            times.append((time.perf_counter() - start) / (given.count // 20))
    return {"meeting": meeting, "agreement": statistics.median(times) * 1e6}


def _ids(batch: int, seq: int, seed: int) -> torch.Tensor:
    return torch.randint(24, (batch, seq), generator=torch.Generator().manual_seed(seed))


def _calls(given: argparse.Namespace) -> dict[str, Any]:
    """Calls of random sizes, which every rank makes after random delays of its own."""
    alike, own, answers = random.Random(1), random.Random(os.environ["RANK"]), []
    with aotair.load(given.artifact, rank_timeout=60) as model:
        for number in range(given.count):
            size = alike.randint(1, 3), alike.randint(1, 4)
            time.sleep(own.random() * 0.002)
            model.reset_state()
            answers.append([*size, model(_ids(*size, number)).double().sum().item()])
    return {"answers": answers}


def _host(given: argparse.Namespace) -> dict[str, Any]:
    """Microseconds of a call that every rank makes, and of one that the first rank drives, nothing done on devices; the
    largest error of logits, three tokens in a row, before that."""
    import simnpu

    from .ranks_decoder import call_inputs

    with aotair.load(given.artifact, device="npu", rank_timeout=60) as model:
        inputs = call_inputs(model.device)
        error = _error(given.count, lambda: model(*inputs), inputs)
        with simnpu.null_device():
            every = _microseconds(lambda: model(*inputs))
            driven = 0.0
            if not model.drives:
                model.follow()
            else:
                with model.driver() as driver:
                    driven = _microseconds(lambda: driver(*inputs))
    return {"error": error, "every": every, "driven": driven}


def _torchair(given: argparse.Namespace) -> dict[str, Any]:
    """The same of stock TorchAir, each rank of which compiles for itself."""
    import simnpu
    import torch.distributed as dist
    import torch_npu.dynamo.torchair as torchair

    from .ranks_decoder import call_inputs, make

    dist.init_process_group("cpu:gloo,npu:hccl")
    mesh = dist.device_mesh.init_device_mesh("npu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    dist.all_reduce(torch.ones(1, device="npu"), group=mesh.get_group())  # a capture makes no communicator
    config = torchair.CompilerConfig()
    config.mode = "reduce-overhead"
    model = make(given.count, mesh).to("npu")
    compiled = torch.compile(
        model, backend=torchair.get_npu_backend(compiler_config=config), dynamic=False, fullgraph=True
    )
    inputs = call_inputs(torch.device("npu", torch.npu.current_device()))
    with torch.no_grad():
        error = _error(given.count, lambda: compiled(*inputs), inputs)
        with simnpu.null_device():
            return {"error": error, "every": _microseconds(lambda: compiled(*inputs))}


def _error(layers: int, call: Callable[[], torch.Tensor], inputs: Sequence[torch.Tensor]) -> float:
    """How far logits are from those of the whole model, over three tokens."""
    from .ranks_decoder import call_inputs, make

    original, (ids, position) = make(layers), call_inputs(torch.device("cpu"))
    worst = 0.0
    with torch.no_grad():
        for number in range(3):
            for one in (inputs[1], position):
                one.fill_(number)
            worst = max(worst, (call().cpu() - original(ids, position)).abs().max().item())
    return worst


def _microseconds(call: Callable[[], object]) -> float:
    return host_microseconds(call, torch.npu.synchronize, 1000)


def _lost(given: argparse.Namespace) -> dict[str, Any]:
    """Calls until rank `lost` ends, or stands still, at the call number `at`; then a load of it all again."""
    import signal

    model = aotair.load(given.artifact, rank_timeout=3)
    wrong, error, start, me = 0, "", time.perf_counter(), model.rank
    try:
        for number in range(given.at + 50):
            if me == given.lost and number == given.at:
                os.kill(os.getpid(), signal.SIGKILL if given.how == "kill" else signal.SIGSTOP)
            start = time.perf_counter()
            model.reset_state()
            answer = model(_ids(2, 4, number))
            wrong += int(not bool(answer.isfinite().all()))
    except (RankError, AotairError) as refused:
        error = f"{type(refused).__name__}: {refused}"
    return {"wrong": wrong, "error": error, "seconds": time.perf_counter() - start}


if __name__ == "__main__":
    main()
