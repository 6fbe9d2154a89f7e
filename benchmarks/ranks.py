"""Artifacts of several ranks, in processes on this machine over Gloo: tokens, sizes, meeting, lost ranks.

Tokens are those of transformers' generate on one rank, also where replicas share out experts and each has prompts of
its own; SmolLM2's weights are real ones (`make chat`), and its prompts
questions. `--only tokens | sizes | meet | calls | lost | host | orders`;
`--models` for the tokens; `--losses N` ranks that are killed or stopped at random calls. `--device npu --simulator
FOLDER`, where that has `site` and `lib` of the simulated NPU (`tests/simnpu/README.md`), runs the tokens over simulated
HCCL. `host` is the host time of a call on two and four simulated NPUs, beside stock TorchAir;
`orders` replays models on two of them in `--orders N` random orders of their streams.
"""

import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import transformers as tf

import aotair
from aotair_runtime.artifact.open import read_program
from aotair_runtime.format.mesh import parts_of, ranks_of
from aotair_runtime.format.schema import WEIGHTS_FILE
from aotair_runtime.memory.sizes import tensor_bytes
from examples.generate import some_prompts

from .common import Row, free_port, options, report
from .decoder_models import DECODERS, seeded
from .decoders import ENTRIES, LENGTHS, _theirs
from .smollm2 import GGUF, generated, original, questions

REAL = "smollm2"  # nine heads: those of two ranks are whole on both
MODELS: dict[str, Sequence[Mapping[str, int]]] = {
    "llama": ({"tp": 2}, {"tp": 4}, {"dp": 2, "tp": 2}, {"pp": 2}, {"pp": 2, "tp": 2}),
    "qwen3_moe": ({"tp": 2}, {"tp": 4}, {"ep": 2}, {"pp": 2}),
    "deepseek_v3": ({"tp": 2}, {"tp": 4}, {"ep": 2}, {"pp": 2}),
    REAL: ({"tp": 2}, {"tp": 3}),
}
OTHERWISE: Mapping[str, Mapping[str, str]] = {
    "experts of all replicas": {"*": "auto", "*.experts": "expert_dispatch"},  # which have prompts of their own
    "rows between blocks": {"*": "auto", "*layernorm": "sequence", "*model.norm": "sequence"},
}
SHARED_OTHERWISE: dict[str, Sequence[tuple[str, Mapping[str, int]]]] = {
    "llama": (("rows between blocks", {"tp": 2}), ("rows between blocks", {"tp": 4})),
    "qwen3_moe": (("experts of all replicas", {"dp": 2}), ("experts of all replicas", {"dp": 2, "tp": 2})),
    "deepseek_v3": (("experts of all replicas", {"dp": 2}),),
}
SMALL = Path(__file__).parent.parent / "tests" / "models.py"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", choices=[*_PARTS], action="append")
    parser.add_argument("--models", nargs="*", default=[*MODELS], choices=[*DECODERS, REAL])
    parser.add_argument("--losses", type=int, default=20)
    parser.add_argument("--device", choices=["cpu", "npu"], default="cpu")
    parser.add_argument("--orders", type=int, default=200)
    parser.add_argument("--simulator", type=Path, default=Path("build/simnpu"))
    given = parser.parse_args()
    tf.utils.logging.set_verbosity_error()
    tf.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for part in given.only or _PARTS for row in _PARTS[part](Path(folder), given)]
    report(rows, given.json)


def ranks(
    count: int,
    what: str,
    artifact: Path,
    out: Path,
    *more: object,
    limit: float = 300,
    around: Sequence[str] = (),
    packages: Path | None = None,
) -> list[Any]:
    """What each of `count` processes found; None for one that did not come to its end. `around`: a command that runs
    theirs; `packages`: a folder of packages that they find too."""
    node = [sys.executable, "-m", "benchmarks.ranks_node", what, artifact, "--out", out]
    command = [*around, *map(str, (*node, *more))]
    here = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count)}
    here["LOCAL_WORLD_SIZE"] = str(count)
    if packages is not None:
        here["PYTHONPATH"] = os.pathsep.join([str(packages.resolve()), here.get("PYTHONPATH", "")])
    made = []
    for rank in range(count):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
        made.append(subprocess.Popen(command, env=here | place, stderr=subprocess.DEVNULL))
    end = time.monotonic() + limit
    for process in made:
        try:
            process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
    files = [out.with_suffix(f".{rank}.json") for rank in range(count)]
    found = [json.loads(file.read_text()) if file.exists() else None for file in files]
    for file in files:
        file.unlink(missing_ok=True)
    return found


def _simulated(given: Any) -> list[str]:
    """The command that runs another one where the device is."""
    return [] if given.device == "cpu" else _with_simulator(given.simulator)


def _with_simulator(folder: Path) -> list[str]:
    """The command that runs another one with the simulated NPU, of which a folder holds `site` and `lib`."""
    place = ("--site", str(folder / "site"), "--lib", str(folder / "lib"))
    return [sys.executable, "tests/simnpu/run.py", *place, "--"]


def _decoder(folder: Path, name: str, mesh: Mapping[str, int], device: str = "cpu") -> tuple[Path, float]:
    """The artifact of a decoder over a mesh, and the seconds of its build."""
    return _built(folder, name, dict(mesh), device, folder / f"{_file_name(name, mesh)}.aotair")


def _file_name(name: str, mesh: Mapping[str, int]) -> str:
    return f"{name}-{'-'.join(f'{a}{n}' for a, n in mesh.items())}"


def _built(
    folder: Path, name: str, mesh: object, device: str, out: Path, parallel: object = "auto"
) -> tuple[Path, float]:
    checkpoint = GGUF if name == REAL else folder / name
    if not checkpoint.exists():
        seeded(DECODERS[name]()).save_pretrained(checkpoint)
    start = time.perf_counter()
    recipe = {"name": name, "model": {"pretrained": str(checkpoint), "kwargs": {"length": 128}}}
    entries = ENTRIES if name != REAL else {**ENTRIES, "prefill": {"buckets": {"batch": [8], "seq": [64]}}}
    shared = {"mesh": mesh, "parallel": parallel}
    aotair.build({**recipe, **shared, "entry_points": entries, "target": {"device": device}}, out)
    return out, time.perf_counter() - start


def _tokens(folder: Path, given: Any) -> Iterator[Row]:
    for name in given.models:
        prompts, want = _wanted(name)
        (asked := folder / "prompts.json").write_text(json.dumps(prompts))
        for mesh, how in _shared_out(name):
            out = folder / f"{_file_name(name, mesh)}{how and '-otherwise'}.aotair"
            artifact, seconds = _built(folder, name, dict(mesh), given.device, out, OTHERWISE.get(how, "auto"))
            options_ = ("--device", given.device, "--prompts", asked)
            said = ranks(_count(mesh), "tokens", artifact, folder / "said", *options_, around=_simulated(given))
            missing = {"tokens": [[]] * len(prompts), "prompts": [0, len(prompts)]}
            wrong = [_unlike(one["tokens"], want[slice(*one["prompts"])]) for one in (o or missing for o in said)]
            what = f"{name} {dict(mesh)}{how and f', {how}'}: wrong tokens, any rank"
            row = Row(what, 0, max(wrong), "", f"built in {seconds:.0f} s")
            print(f"{row.what}: {row.value}", flush=True)
            yield row


def _orders(folder: Path, given: Any) -> Iterator[Row]:
    """Of each model with seeded weights, shared out over two simulated NPUs as its own plan says."""
    around = _with_simulator(given.simulator)
    (asked := folder / "prompts.json").write_text(json.dumps(some_prompts(256, LENGTHS)))
    for name in (name for name in given.models if name != REAL):
        artifact = _built(folder, name, {"tp": 2}, "npu", folder / f"{name}-orders.aotair")[0]
        more = ("--device", "npu", "--prompts", asked, "--count", given.orders)
        said = ranks(2, "orders", artifact, folder / "said", *more, limit=1800, around=around)
        wrong = max(one["wrong"] if one else given.orders for one in said)
        row = Row(f"{name} on two simulated NPUs: wrong of {given.orders} random orders", 0, wrong)
        print(f"{row.what}: {row.value}", flush=True)
        yield row


def _shared_out(name: str) -> Iterator[tuple[Mapping[str, int], str]]:
    """The meshes of a model, each with a key of OTHERWISE, or empty for the model's own plan."""
    yield from ((mesh, "") for mesh in MODELS.get(name, ({"tp": 2},)))
    yield from ((mesh, how) for how, mesh in SHARED_OTHERWISE.get(name, ()))


def _wanted(name: str) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts, and the tokens that transformers makes of each."""
    if name == REAL:
        if not GGUF.exists():
            raise SystemExit("make chat fetches the weights of SmolLM2 first")
        prompts, model = questions(), original()
        return prompts, [generated(model, prompt) for prompt in prompts]
    model, prompts = seeded(DECODERS[name]()), some_prompts(256, LENGTHS)
    model.generation_config.eos_token_id = None
    return prompts, [_theirs(model, prompt) for prompt in prompts]


def _unlike(got: Sequence[Sequence[int]], want: Sequence[Sequence[int]]) -> int:
    """How many tokens are others, or missing."""
    return sum(a != b for ours, theirs in zip(got, want, strict=True) for a, b in itertools.zip_longest(ours, theirs))


def _sizes(folder: Path, given: Any) -> Iterator[Row]:
    """Of the largest of the models: what a rank holds, what the disk holds, how long a build takes."""
    one, alone = _decoder(folder, "llama", {"tp": 1})
    four, together = _decoder(folder, "llama", {"tp": 4})
    (asked := folder / "prompts.json").write_text(json.dumps(some_prompts(256, LENGTHS)))
    mine = ranks(4, "tokens", four, folder / "said", "--prompts", asked)[0]["weights"]
    whole = ranks(1, "tokens", one, folder / "said", "--prompts", asked)[0]["weights"]
    twice = _replicated(four)
    every, seconds = _built(folder, "llama", [{}, {"tp": 2}, {"tp": 4}], "cpu", folder / "every.aotair")
    bytes_ = [sum(file.stat().st_size for file in path.rglob("*.safetensors")) for path in (one, four)]
    yield Row("bytes of a tp 4 artifact, against tp 1", 1.02, bytes_[1] / bytes_[0], "×")
    weights = [(path / WEIGHTS_FILE).stat().st_size for path in (one, every)]
    what = "weights of an artifact for one rank, tp 2 and tp 4, against tp 1"
    yield Row(what, 1.02, weights[1] / weights[0], "×", f"built in {seconds:.0f} s")
    what = "weights of a rank, tp 4, against tp 1; the bound with what more than one rank has"
    yield Row(what, 0.27 + twice / whole, mine / whole, "×", f"{twice:,} bytes of {mine:,}: norms, heads of keys")
    yield Row("build of tp 4, against tp 1", 1.5, together / alone, "×", f"{alone:.0f} and {together:.0f} s")


def _replicated(artifact: Path) -> int:
    """The bytes that a rank has of what others have too: of a part of two ranks the half."""
    program = read_program(artifact)
    ranks_ = ranks_of(program.mesh)
    parts = {constant: 1 if constant.shard is None else parts_of(constant.shard) for constant in program.constants}
    return sum(tensor_bytes(constant) * (ranks_ - count) // ranks_ for constant, count in parts.items())


def _meet(folder: Path, given: Any) -> Iterator[Row]:
    for count in (2, 4, 8):
        said = ranks(count, "meet", _small(folder, count), folder / "said")
        meeting = max(one["meeting"] for one in said)
        agreement = statistics.median(one["agreement"] for one in said)
        yield Row(f"meeting, {count} ranks", 0.3, meeting, "s", "beyond torch's own rendezvous")
        yield Row(f"agreement on a bucket, {count} ranks", 100, agreement, "us", f"{os.cpu_count()} processors")


def _calls(folder: Path, given: Any) -> Iterator[Row]:
    said = ranks(4, "calls", _small(folder, 4), folder / "said", "--count", 1000)
    want = ranks(1, "calls", _small(folder, 1), folder / "said", "--count", 1000)[0]["answers"]
    hung = sum(one is None for one in said)
    far = [abs(a[2] - b[2]) > 1e-3 for one in said if one for a, b in zip(one["answers"], want)]
    yield Row("1,000 calls of random sizes and delays, 4 ranks: hung", 0, hung)
    yield Row("… wrong, on any rank", 0, sum(far) + (4 - hung) * 1000 - len(far))


def _lost(folder: Path, given: Any) -> Iterator[Row]:
    chance, artifact = random.Random(0), _small(folder, 4)
    hung = unnamed = wrong = 0
    seconds: list[float] = []
    for _ in range(given.losses):
        lost, at, how = chance.randrange(4), chance.randrange(40), chance.choice(["kill", "stop"])
        options_ = ("--lost", lost, "--at", at, "--how", how)
        said = ranks(4, "lost", artifact, folder / "said", *options_, limit=40)
        for rank, one in enumerate(said):
            if rank != lost:
                hung += one is None
                unnamed += one is not None and f"rank {lost} " not in one["error"]
                wrong += 0 if one is None else one["wrong"]
                seconds += [] if one is None else [one["seconds"]]
    of = f"of {given.losses} losses"
    yield Row(f"ranks killed or stopped at random: hung beyond the limit, {of}", 0, hung)
    yield Row("… that did not name the lost one", 0, unnamed)
    yield Row("… wrong numbers", 0, wrong)
    yield Row("… seconds until the last rank says so; 3 is how long a rank is waited for", 12, max(seconds), "s")


def _host(folder: Path, given: Any) -> Iterator[Row]:
    """Both on the simulated NPU, whose own work is left out; three fresh sets of processes each, which take turns."""
    from .device import PEER, SITE, simulated
    from .ranks_decoder import recipe

    simulated()
    around = _with_simulator(SITE.parent)
    for layers, count in ((4, 4), (24, 4), (24, 2)):
        artifact = aotair.build(recipe(layers, count, "npu"), folder / f"decoder{layers}-{count}.aotair")
        ours, theirs = [], []
        for _ in range(3):
            about = ("--count", layers, "--device", "npu")
            ours.append(ranks(count, "host", artifact, folder / "said", *about, around=around))
            theirs.append(ranks(count, "torchair", artifact, folder / "said", *about, around=around, packages=PEER))
        error = max(one["error"] for said in (*ours, *theirs) for one in said)
        every, peer = (statistics.median(one["every"] for said in found for one in said) for found in (ours, theirs))
        driven = statistics.median(said[0]["driven"] for said in ours)
        text = f"TorchAir {peer:.0f} us, ours {every:.0f} us"
        yield Row(f"{layers} layers, {count} ranks: largest error of logits", 1e-3, error)
        yield Row("… host time of a call that every rank makes, against TorchAir", 0.1, every / peer, "×", text)
        yield Row("… of one that the first rank drives", 0.1, driven / peer, "×", f"ours {driven:.0f} us")


def _small(folder: Path, count: int) -> Path:
    """A model of a few numbers, so that what is left is what the ranks say to each other."""
    out = folder / f"small{count}.aotair"
    if not out.exists():
        ids = {"shape": ["batch", "seq"], "dtype": "int64", "range": [0, 24], "pad": "any"}
        styles = {"embed": "vocabulary", "up": "colwise", "down": "rowwise", "head": "gathered"}
        recipe = {"name": "small", "model": {"factory": f"{SMALL}:Shared"}, "inputs": {"ids": ids}}
        aotair.build(
            {**recipe, "buckets": {"batch": [1, 3], "seq": [4]}, "mesh": {"tp": count}, "parallel": styles}, out
        )
    return out


def _count(mesh: Mapping[str, int]) -> int:
    count = 1
    for size in mesh.values():
        count *= size
    return count


_PARTS = {
    "tokens": _tokens,
    "sizes": _sizes,
    "meet": _meet,
    "calls": _calls,
    "lost": _lost,
    "host": _host,
    "orders": _orders,
}

if __name__ == "__main__":
    main()
