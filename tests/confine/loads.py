"""Mutants of good artifacts, loaded and called with the caller's tensors between forbidden pages."""

import random
import resource
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import msgpack
import torch

import aotair_runtime
from aotair_runtime.errors import AotairError
from aotair_runtime.format.schema import WEIGHTS_FILE

from .guarded import Guarded
from .models import MODELS
from .mutants import body, list_weights, mutant, mutant_weights, write_packed
from .supervised import Fault, Work

SECONDS, MEGABYTES = 2.0, 200  # more than the honest load


def build(folder: Path) -> None:
    """The artifacts of `models`, in `folder`."""
    import aotair

    for name, (make, inputs, more) in MODELS.items():
        torch.manual_seed(0)
        aotair.build(out=folder / f"{name}.aotair", model=make().eval(), name=name, inputs=inputs, **more)


class Target:
    """The artifacts in `folder`, of which hostile copies are written to `scratch`, loaded and called."""

    def __init__(self, folder: Path, scratch: Path):
        torch.set_num_threads(1)
        self.names = sorted(MODELS)
        self.programs = {name: msgpack.packb(body(folder / f"{name}.aotair")) for name in self.names}
        self.weights = {name: (folder / f"{name}.aotair" / WEIGHTS_FILE).read_bytes() for name in self.names}
        self._scratch, self._guards = scratch, [Guarded(1 << 13) for _ in range(4)]
        for name in self.names:
            shutil.copytree(folder / f"{name}.aotair", scratch / name, dirs_exist_ok=True)
            if (end := _attempt(scratch / name, name, self._guards)) != "ran":
                raise Fault(f"the artifact {name} as it was built is {end}")

    def attempt(self, name: str, program: bytes, weights: bytes | None = None) -> str:
        """How a load and two calls end. Raises Fault where it does what none may."""
        folder = self._scratch / name
        write_packed(program, folder)
        if weights is not None:
            (folder / WEIGHTS_FILE).write_bytes(weights)
        began, before = time.monotonic(), _peak()
        try:
            end = _attempt(folder, name, self._guards)
        finally:
            if weights is not None:
                (folder / WEIGHTS_FILE).write_bytes(self.weights[name])
        if time.monotonic() - began > SECONDS:
            raise Fault(f"{name}: took {time.monotonic() - began:.1f} s")
        if _peak() - before > MEGABYTES:
            raise Fault(f"{name}: took {_peak() - before} MB")
        return end.partition(":")[0]


def mutants(folder: Path, scratch: Path, seed: str) -> Work:
    """Cases of the artifacts in `folder`: nine of ten have another program, one another weights file."""
    target = Target(folder, scratch)

    def work(case: int) -> str:
        rng = random.Random(f"{seed}{case}")
        name = rng.choice(target.names)
        weights = None
        try:
            if rng.random() < 0.1:
                program = msgpack.unpackb(target.programs[name])
                weights = mutant_weights(target.weights[name], rng)
                list_weights(program, weights)
            else:
                program = mutant(target.programs[name], rng)
            packed = msgpack.packb(program)
        except (OverflowError, ValueError, RecursionError, TypeError):
            return "not to be written"
        return target.attempt(name, packed, weights)

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
