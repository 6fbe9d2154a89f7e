"""What the processes of tests/runtime/test_ranks.py do. `python rank_scenarios.py SCENARIO FOLDER ARGUMENT …`"""

import functools
import importlib
import json
import os
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import safetensors.torch
import torch
from torch import distributed as dist

import aotair_runtime as aotair
from aotair_runtime.errors import AotairError, OutputHeldWarning
from aotair_runtime.format.mesh import mesh_text
from aotair_runtime.handover import place_of
from aotair_runtime.weights.golden import replay_golden

RANK = int(os.environ.get("RANK", 0))
warnings.filterwarnings("ignore", category=OutputHeldWarning)


kept: list[aotair.Model] = []


def refused(call) -> str:
    """The class of the error that a call ends in, and what it says."""
    try:
        call()
    except AotairError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def ids(batch: int, seq: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(24, (batch, seq), generator=torch.Generator().manual_seed(seed))


def calls(folder: Path, artifact: str) -> object:
    """Calls of all sizes; calls that differ; what a rank refuses; what one rank drives; the golden tensors."""
    found: dict[str, object] = {}
    with aotair.load(artifact, rank_timeout=30, enable_output_clone=True) as model:
        sizes = [(batch, seq) for batch in (1, 2, 3) for seq in (1, 4)]
        found["answers"] = [model(ids(*size, n)).tolist() for n, size in enumerate(sizes)]
        found["differ"] = refused(lambda: model(ids(1 + model.rank, 4)))
        found["refused"] = refused(lambda: model(ids(9 if model.rank else 1, 4)))
        found["dtype"] = refused(lambda: model(ids(1, 4).float()))
        found["sparse"] = refused(lambda: model(ids(1, 4).to_sparse()))
        ragged = torch.nested.nested_tensor([ids(1, 4)[0]], layout=torch.jagged)
        found["ragged"] = refused(lambda: model(ragged))
        found["text"] = refused(lambda: model("a" if model.rank else ids(1, 4)))
        model.reset_state()
        found["again"] = model(ids(1, 1)).tolist()
        model.reset_state()
        if model.drives:
            with model.driver() as driver:
                found["driven"] = [driver(ids(*size, n)).tolist() for n, size in enumerate(sizes)]
                found["misfit"] = refused(lambda: driver(ids(9, 4)))
                found["none"] = [refused(functools.partial(driver, value)) for value in ("a", None, [1, 2])]
                with ThreadPoolExecutor(4) as threads:
                    given = [ids(1, 1 + n % 4, n) for n in range(40)]
                    found["at_once"] = [one.tolist() for one in threads.map(driver, given)]
        else:
            found["followed"] = model.follow()
        found["golden"] = [result.within for result in replay_golden(model)]
        promised = next(item.nbytes for item in model.promise.items if item.name == "weights")
        found["weights"] = [promised, sum(tensor.nbytes for tensor in model._resident.constants)]
        found["profile"] = refused(model.profile)
        found["snapshot"] = refused(lambda: model.snapshot(folder / "snap", ids(1, 1)))
    found["closed"] = refused(lambda: model(ids(1, 1)))
    return found


def reloads(folder: Path, artifact: str, other: str, broken: str, stale: str) -> object:
    """Another checkpoint, whole, on every rank; then what one rank alone cannot read, and what one alone has."""
    with aotair.load(artifact, rank_timeout=30, enable_output_clone=True) as model:
        places = [tensor.data_ptr() for tensor in model._resident.constants]
        before = model(ids(2, 4)).tolist()
        model.load_weights(other)
        after = model(ids(2, 4)).tolist()
        failed = refused(lambda: model.load_weights(broken if model.rank else other))
        pairs = ((other, artifact), (stale, other))
        unlike = [refused(functools.partial(model.load_weights, pair[model.rank])) for pair in pairs]
        model.reset_state()
        kept = model(ids(2, 4)).tolist()
        stayed = places == [tensor.data_ptr() for tensor in model._resident.constants]
        captures = model.stats().captures
    found = {"before": before, "after": after, "failed": failed, "unlike": unlike, "kept": kept}
    return {**found, "stayed": stayed, "captures": captures}


def answers_of(artifact: str, **options: object) -> dict[str, object]:
    """For which mesh a load is, and what it answers to calls of all sizes."""
    with aotair.load(artifact, rank_timeout=30, enable_output_clone=True, **options) as model:
        answers = [model(ids(batch, seq, 3 * batch)).tolist() for batch in (1, 2, 3) for seq in (1, 4)]
        return {"mesh": mesh_text(model.program.mesh), "answers": answers, "rank": model.rank}


def chosen(folder: Path, artifact: str, alone: str) -> object:
    """An artifact for several meshes, of which these ranks take one, and that for this mesh alone."""
    return [answers_of(artifact), answers_of(alone)]


def named(folder: Path, artifact: str, *meshes: str) -> object:
    """Of several meshes of one size each that is named, and what is said where none is, or each rank names another; and
    the program for one rank, which each rank has for itself."""
    found = {mesh: answers_of(artifact, mesh=json.loads(mesh)) for mesh in (*meshes, "{}")}
    unnamed = refused(lambda: aotair.load(artifact, rank_timeout=10))
    unlike = refused(lambda: aotair.load(artifact, rank_timeout=10, mesh=json.loads(meshes[RANK % len(meshes)])))
    return {**found, "unnamed": unnamed, "unlike": unlike}


def in_groups(folder: Path, artifact: str) -> object:
    """The first rank for itself, the next two together, and all of them, each in a process group."""
    dist.init_process_group("gloo")
    groups = [dist.new_group(list(ranks)) for ranks in ((0,), (1, 2))]
    mine = answers_of(artifact, group=groups[min(RANK, 1)]) if RANK < 3 else None
    dist.barrier()
    return [mine, answers_of(artifact)]


def commands(folder: Path, artifact: str) -> object:
    """What commands print on each rank."""
    from click.testing import CliRunner

    from aotair.cli import main

    runs = (["verify", artifact], ["bench", artifact, "--seconds", "0.01"], ["verify", artifact, "--mesh", "tp=4"])
    results = [CliRunner().invoke(main, run) for run in runs]
    return [[result.exit_code, result.output] for result in results]


def leaves_open(folder: Path, artifact: str) -> object:
    """A program that ends without closing its model."""
    kept.append(aotair.load(artifact, rank_timeout=30, enable_output_clone=True))
    return kept[0](ids(2, 4)).tolist()


def led(folder: Path, artifact: str, lost: str) -> object:
    """Calls that rank 0 drives, until one of the ranks ends."""
    with aotair.load(artifact, rank_timeout=30, enable_output_clone=True) as model:
        if model.rank == int(lost):
            threading.Timer(1.0, os._exit, (1,)).start()
        start = time.monotonic()
        error = refused((lambda: drive(model)) if model.drives else model.follow)
        return {"error": error, "seconds": time.monotonic() - start, "after": refused(lambda: model(ids(1, 1)))}


def drive(model: aotair.Model) -> None:
    with model.driver() as driver:
        while True:
            driver(ids(2, 4))


def lists(folder: Path, artifact: str) -> object:
    """Calls with lists of the host, which rank 0 drives: as lists, tuples and tensors, and what does not fit."""
    importlib.import_module("aotair.ops.npu")  # whose kernels of the host the artifact calls
    with aotair.load(artifact, rank_timeout=30, enable_output_clone=True) as model:
        if not model.drives:
            return {"followed": model.follow()}
        with model.driver() as driver:
            misfits = ([1, 9], [1.5, 2.0], [1], "ab", None)
            refusals = [refused(functools.partial(driver, *decode_inputs(2)[:2], one, [1, 1])) for one in misfits]
            found = []
            for kind in (list, tuple, torch.tensor):
                for count in (1, 2, 3):
                    x, keys, *both = decode_inputs(count)
                    found.append(driver(x, keys, *map(kind, both)).tolist())
        return {"answers": found, "refused": refusals}


def decode_inputs(count: int) -> tuple[torch.Tensor, torch.Tensor, list[int], list[int]]:
    """Of models.Decode: rows, their keys, and how many of these each attends to."""
    draw = torch.Generator().manual_seed(count)
    x, keys = torch.randn(count, 1, 16, generator=draw), torch.randn(count, 6, 16, generator=draw)
    return x, keys, [1 + n for n in range(count)], [6 - n for n in range(count)]


def hands_over(folder: Path, artifact: str) -> object:
    """States through a file to a model that is loaded later; and those of the other rank."""
    files = [folder / f"states{rank}.safetensors" for rank in (RANK, 1 - RANK)]
    with aotair.load(artifact, rank_timeout=30, enable_output_clone=True) as model:
        fresh = model(ids(2, 4)).tolist()
        model(ids(1, 4))
        safetensors.torch.save_file(model.export_state([0], parts=1), files[0])
        want = model(ids(2, 4)).tolist()
        place = place_of(model.program, model.rank)
    with aotair.load(artifact, rank_timeout=30, enable_output_clone=True) as model:  # once all have written
        other = refused(lambda: model.import_state(safetensors.torch.load_file(files[1]), [0], parts=1))
        model.import_state(safetensors.torch.load_file(files[0]), [0], parts=1)
        got = model(ids(2, 4)).tolist()
    return {"fresh": fresh, "want": want, "got": got, "place": place, "refused": other}


def meets(folder: Path, *artifacts: str) -> object:
    """A load of an artifact of each rank's own."""
    start = time.monotonic()
    found = refused(lambda: aotair.load(artifacts[RANK % len(artifacts)], rank_timeout=10).close())
    return {"error": found, "seconds": time.monotonic() - start}


def loses(folder: Path, artifact: str, lost: str, how: str) -> object:
    """Calls until a rank does not come any more: it ends, or stands still."""
    model = aotair.load(artifact, rank_timeout=4, enable_output_clone=True)
    for number in range(5):
        model(ids(1, 4, number))
    if model.rank == int(lost):
        if how == "ends":
            os._exit(3)
        (folder / "ready").write_text(str(os.getpid()))
        time.sleep(30 if how == "stands" else 1)
    start = time.monotonic()
    error = refused(lambda: [model(ids(1, 4)) for _ in range(1000)])
    found = {"error": error, "seconds": time.monotonic() - start, "after": refused(lambda: model(ids(1, 4)))}
    if how == "pauses":
        with aotair.load(artifact, rank_timeout=30, enable_output_clone=True) as model:
            found["again"] = model(ids(2, 4)).tolist()
    return found


def with_own_inputs(folder: Path, artifact: str, ranks_alike: str, clone_input: str = "1") -> object:
    """Calls of every replica's own sizes, which so many neighbours have alike; calls that differ where they may not;
    what a rank refuses; and what one rank drives, with the same inputs for all."""
    import random

    replica = RANK // int(ranks_alike)
    own = random.Random(replica)
    options = {"enable_output_clone": True, "clone_input": clone_input == "1"}
    with aotair.load(artifact, rank_timeout=30, **options) as model:
        answers = []
        for number in range(24):
            batch, seq = own.randint(1, 3), own.randint(1, 8)
            answers.append([batch, seq, number, model(ids(batch, seq, 100 * replica + number)).tolist()])
        calls = {one.bucket: one.calls for one in model.stats().buckets}
        found = {"answers": answers, "replica": replica, "calls": calls}
        found["too_large"] = refused(lambda: model(ids(9 if RANK == 0 else 1, 4)))
        found["within"] = refused(lambda: model(ids(1 + RANK % int(ranks_alike), 4)))
        if model.drives:
            with model.driver() as driver:
                found["driven"] = [driver(ids(1 + number % 3, 1 + number, number)).tolist() for number in range(8)]
        else:
            found["driven"] = model.follow()
        found["golden"] = [result.within for result in replay_golden(model)]
    return found


def refuses_first(folder: Path, artifact: str) -> object:
    """What rank 0 alone is called with wrongly, before it looks at sizes; each time the next call is good."""
    x, into = torch.ones(2, 8), torch.zeros(2, 8)
    turned, beside = torch.zeros(8, 2).t(), torch.zeros(4, 8)
    kept = torch.zeros(2, 8)
    wrong = {
        "again": lambda model: model(kept, kept),  # of which the first was good in the call before
        "names": lambda model: model(into, y=x),
        "outputs": lambda model: model.entry_points["forward"].named_outputs({"into": into}),
        "turned": lambda model: model(turned, x),
        "shared": lambda model: model(beside[:2], beside[1:3]),
    }
    found = {}
    with aotair.load(artifact, rank_timeout=20, enable_output_clone=True) as model:
        model(kept, x)
        for what, call in wrong.items():
            start, into = time.monotonic(), torch.zeros(2, 8)
            error = refused(functools.partial(call, model) if RANK == 0 else functools.partial(model, into, x))
            found[what] = [error, time.monotonic() - start, model(torch.zeros(2, 8), x).sum().item(), into.sum().item()]
    return found


def random_calls(folder: Path, artifact: str, count: str) -> object:
    """Calls of random sizes, each rank after random delays; every so often a rank refuses, or is called otherwise."""
    import random

    alike, own = random.Random(1), random.Random(f"delays of {RANK}")
    answers, refusals = [], 0
    with aotair.load(artifact, rank_timeout=60, enable_output_clone=True) as model:
        for number in range(int(count)):
            batch, seq, odd = alike.randint(1, 3), alike.randint(1, 4), alike.random() < 0.05
            time.sleep(own.random() * 0.002)
            model.reset_state()
            if odd:
                refusals += bool(refused(lambda b=batch, s=seq: model(ids(b % 3 + 1 if model.rank else b, s))))
            else:
                answers.append([number, batch, seq, model(ids(batch, seq, number)).double().sum().item()])
    return {"answers": answers, "refusals": refusals}


if __name__ == "__main__":
    _, scenario, place, *rest = sys.argv
    result = globals()[scenario](Path(place), *rest)
    (Path(place) / f"said{RANK}.json").write_text(json.dumps(result))
