"""Capture and replay on a device, beside stock TorchAir in the same simulator: one fresh process each, taking turns.

The decoder has 24 layers (hidden 256, 4 heads) and caches of 128 positions as mutated inputs, in batch buckets 1, 2, 4,
8 and 16. On the simulated NPU the device's own work can be suppressed, so that the host's time is left. `--device cuda`
measures the same without TorchAir on a GPU.
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from .common import BUILD, Row, options, report

ROOT = Path(__file__).parent.parent
SIMULATOR = ROOT / "tests" / "simnpu"
SITE, LIB, PEER = (Path("build/simnpu") / name for name in ("site", "lib", "peer"))
# What stock TorchAir imports beyond torch and torch_npu.
TORCHAIR_NEEDS = ("packaging", "protobuf==3.20.3", "scipy", "psutil", "decorator", "attrs")
VERSION = "2.13.0"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--device", choices=["npu", "cuda"], default="npu")
    parser.add_argument("--processes", type=int, default=3, help="fresh processes of each kind")
    given = parser.parse_args()
    environment = dict(os.environ)
    if given.device == "npu":
        environment = simulated()
    print("Building the artifacts, in a process without the device's package …", flush=True)
    paths = {layers: _artifact(given.device, layers, given.rebuild) for layers in (4, 24)}
    node = _Node(given.device, environment, given.processes)
    rows = _rows(node, paths, _encoder(given.device, given.rebuild))
    print(f"\nMedians of {given.processes} fresh processes each; every answer was compared with the original model.\n")
    report(rows, given.json, runs=node.log)


class _Node:
    """Runs benchmarks.device_node, and remembers what each run said."""

    def __init__(self, device: str, environment: dict, processes: int):
        self.device, self.environment, self.processes = device, environment, processes
        self.log: list[dict] = []

    def run(self, what: str, layers: int, path: object = "-") -> dict:
        command = [sys.executable, "-m", "benchmarks.device_node", what, self.device, str(layers), str(path)]
        environment = dict(self.environment)
        if what.startswith("torchair"):
            environment["PYTHONPATH"] = os.pathsep.join([str(PEER.resolve()), environment["PYTHONPATH"]])
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
        found = json.loads(done.stdout.splitlines()[-1])
        self.log.append({"what": what, "layers": layers, **found})
        print(f"  {what}, {layers} layers: {found}", flush=True)
        return found

    def medians(self, *runs: tuple) -> list[dict]:
        """The medians of runs that take turns, so that all see the same weather on the machine."""
        found = [[self.run(*run) for run in runs] for _ in range(self.processes)]
        return [
            {key: statistics.median(turn[n][key] for turn in found) for key in found[0][n]} for n in range(len(runs))
        ]


def _rows(node: _Node, paths: dict[int, Path], encoder: Path) -> list[Row]:
    with_peer = node.device == "npu"
    starts = [("aotair_start", 24, paths[24])] + ([("torchair_start", 24)] if with_peer else [])
    start, *peer = node.medians(*starts)
    alone = node.run("aotair_alone", 24, paths[24])
    hosts = [("aotair_host", 24, paths[24]), ("aotair_host", 4, paths[4]), ("floor", 0)]
    hosts += [("torchair_host", 24), ("torchair_host", 4)] if with_peer else []
    many, few, floor, *peers = node.medians(*hosts)
    threads = node.run("aotair_threads", 0, encoder)
    text = [f"TorchAir {peer[0]['seconds']:.1f} s", f"TorchAir {peer[0]['reserved']:,.0f}"] if with_peer else ["", ""]
    host = [f"TorchAir {p['us']:.0f}, floor {floor['us']:.1f}" for p in peers] or [f"floor {floor['us']:.1f}"] * 2
    bound = peer[0]["seconds"] / 10 if with_peer else float("inf")
    rows = [
        Row("model ready to all five buckets answered once", bound, start["seconds"], "s", text[0]),
        Row("largest error against the original", 1e-3, start["error"], "", ""),
        Row("host time per call, 24 layers, 48 caches", 20, many["us"], "us", host[0]),
        Row("host time per call, 4 layers, 8 caches", 12, few["us"], "us", host[1]),
        Row("pool after all buckets / after the largest alone", 1.02, start["reserved"] / alone["reserved"], "x"),
        Row("wrong answers of 10,000 replays in 4 threads", 0, threads["wrong"]),
        Row("bytes grown by them", 0, threads["grown"], "B"),
    ]
    if with_peer:
        rows.insert(5, Row("bytes reserved in the pool", peer[0]["reserved"], start["reserved"], "B", text[1]))
    return rows


# ---- what has to be there --------------------------------------------------------------------------------------------


def simulated() -> dict[str, str]:
    """The environment of a process with the simulated NPU, installed where it is not yet."""
    sys.path.insert(0, str(SIMULATOR))
    import run

    if reason := run.install(VERSION, SITE, LIB):
        raise SystemExit(f"there can be no simulated NPU here: {reason}")
    if not PEER.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(PEER), *TORCHAIR_NEEDS]
        subprocess.run(pip, check=True)
    return run.environment(LIB, SITE)


def _artifact(device: str, layers: int, rebuild: bool) -> Path:
    from .decoder import recipe

    return built(recipe(layers, device), BUILD / f"decoder{layers}.{device}.aotair", rebuild)


def _encoder(device: str, rebuild: bool) -> Path:
    recipe = {
        "name": "encoder",
        "model": {"factory": f"{ROOT / 'tests' / 'models.py'}:Encoder"},
        "target": {"device": device},
        "inputs": {
            "ids": {"shape": ["batch", "seq"], "dtype": "int64", "range": [0, 50], "pad": "any"},
            "mask": {"shape": ["batch", "seq"], "dtype": "int64", "range": [0, 2], "pad": 0},
        },
        "buckets": {"batch": [1, 4], "seq": [4, 8, 16]},
    }
    return built(recipe, BUILD / f"encoder.{device}.aotair", rebuild)


def built(recipe: dict, path: Path, rebuild: bool) -> Path:
    """The artifact of a recipe at `path`, built where there is none or it is to be built again."""
    if rebuild or not path.exists():
        import aotair

        aotair.build(recipe, path)
    return path


if __name__ == "__main__":
    main()
