"""What each rank of `benchmarks.ranks` does, in a process of its own; the first prints what it found, as JSON."""

import argparse
import json
import os
import random
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch

import aotair_runtime as aotair
from aotair_runtime.errors import AotairError, OutputHeldWarning, RankError

warnings.filterwarnings("ignore", category=OutputHeldWarning)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["tokens", "meet", "calls", "lost"])
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--out", type=Path, required=True)
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
    from examples.generate import generate, some_prompts

    from .decoders import LENGTHS, TOKENS

    with aotair.load(given.artifact, device=given.device, enable_output_clone=True, rank_timeout=120) as served:
        weights = next(item.nbytes for item in served.promise.items if item.name == "weights")
        return {"tokens": generate(served, some_prompts(256, LENGTHS), TOKENS), "weights": weights}


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
