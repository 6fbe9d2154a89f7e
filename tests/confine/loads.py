"""Mutants of good artifacts, loaded and called with the caller's tensors between forbidden pages."""

import random
import resource
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import torch

import aotair_runtime
from aotair_runtime.errors import AotairError

from .guarded import Guarded
from .models import MODELS
from .mutants import body, mutant, write
from .supervised import Fault, Work

SECONDS, MEGABYTES = 2.0, 200  # more than the honest load


def build(folder: Path) -> None:
    """The artifacts of `models`, in `folder`."""
    import aotair

    for name, (make, inputs, buckets) in MODELS.items():
        torch.manual_seed(0)
        more = {"buckets": buckets} if buckets else {}
        aotair.build(out=folder / f"{name}.aotair", model=make().eval(), name=name, inputs=inputs, **more)


def mutants(folder: Path, scratch: Path, seed: str) -> Work:
    """Cases of the artifacts in `folder`; each is written to `scratch`."""
    torch.set_num_threads(1)
    names = sorted(MODELS)
    bodies = {name: body(folder / f"{name}.aotair") for name in names}
    guards = [Guarded(1 << 13) for _ in range(4)]
    for name in names:
        shutil.copytree(folder / f"{name}.aotair", scratch / name, dirs_exist_ok=True)
        if (end := _attempt(scratch / name, name, guards)) != "ran":
            raise Fault(f"the artifact {name} as it was built is {end}")

    def work(case: int) -> str:
        rng = random.Random(f"{seed}{case}")
        name = rng.choice(names)
        try:
            write(mutant(bodies[name], rng), scratch / name)
        except (OverflowError, ValueError, RecursionError):
            return "not to be written"
        began, before = time.monotonic(), _peak()
        end = _attempt(scratch / name, name, guards)
        if time.monotonic() - began > SECONDS:
            raise Fault(f"{name}: took {time.monotonic() - began:.1f} s")
        if _peak() - before > MEGABYTES:
            raise Fault(f"{name}: took {_peak() - before} MB")
        return end.partition(":")[0]

    return work


def _attempt(artifact: Path, name: str, guards: list[Guarded]) -> str:
    """Load and call twice. Raises Fault where a call reaches beyond what it was given."""
    given = _inputs(name)
    placed = {
        key: guard.place(value, value.shape, value.stride()) for guard, (key, value) in zip(guards, given.items())
    }
    before = [guard.bytes() for guard in guards[: len(given)]]
    generator = torch.random.get_rng_state()
    try:
        with aotair_runtime.load(artifact, device="cpu") as model:
            for entry in model.entry_points.values():
                entry(**placed)
                entry(**placed)
        end = "ran"
    except AotairError as error:
        end = f"refused: {error}"
    for guard, bytes_before, (key, spec) in zip(guards, before, MODELS[name][1].items()):
        if not guard.is_clean():
            raise Fault(f"{name}: wrote before the input {key}")
        if not spec.get("mutated") and not torch.equal(guard.bytes(), bytes_before):
            raise Fault(f"{name}: wrote to the input {key}")
    if not torch.equal(torch.random.get_rng_state(), generator):
        raise Fault(f"{name}: moved the caller's random numbers")
    return end


def _inputs(name: str) -> Mapping[str, torch.Tensor]:
    made, seed = {}, torch.Generator().manual_seed(0)
    for key, spec in MODELS[name][1].items():
        shape = [3 if size == "batch" else size for size in spec["shape"]]
        whole = spec["dtype"] == "int64"
        made[key] = (
            torch.randint(*spec["range"], shape, generator=seed) if whole else torch.randn(shape, generator=seed)
        )
    return made


def _peak() -> int:
    """Megabytes that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
