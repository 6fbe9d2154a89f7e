"""Builds, proves and replays one small model of each architecture, and compares with the original anew.

The peer is the original model, eager, on inputs that the build has not seen.
"""

import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import aotair
from aotair.model.load import load_model
from aotair.model.samples import random_inputs
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe
from aotair_runtime.format.text import table

from .common import Row, options, report
from .zoo_models import VOCABULARY

# The kinds that must all work; the others are there to find faults.
NAMED = (
    "bert", "distilbert", "roberta", "gpt2", "llama", "qwen3", "t5_encoder", "vit", "clip_text", "clip_vision",
    "whisper_encoder", "convnext", "mamba",
)  # fmt: skip
BOUND = 1e-5
_FRESH_STREAM = 1_000_000  # far from the streams of random numbers that the build draws its own inputs from

_SIZES = [{"batch": 1, "seq": 8}, {"batch": 4, "seq": 24}]
_IDS = {"shape": ["batch", "seq"], "dtype": "int64", "range": [3, VOCABULARY], "pad": "any"}
_MASK = {"shape": ["batch", "seq"], "dtype": "int64", "range": [0, 2], "pad": 0}
_TEXT = ({"input_ids": _IDS, "attention_mask": _MASK}, _SIZES)


def _batches(name: str, *shape: int) -> tuple[dict, list]:
    return {name: {"shape": ["batch", *shape], "dtype": "float32"}}, [{"batch": 1}, {"batch": 4}]


# Inputs and buckets by architecture; the factory of that name is in zoo_models.
ZOO: dict[str, tuple[dict, list]] = {
    **dict.fromkeys(("bert", "distilbert", "roberta", "gpt2", "llama", "qwen3", "t5_encoder"), _TEXT),
    "vit": _batches("pixel_values", 3, 32, 32),
    "clip_text": _TEXT,
    "clip_vision": _batches("pixel_values", 3, 32, 32),
    "whisper_encoder": _batches("input_features", 16, 100),
    "convnext": _batches("pixel_values", 3, 64, 64),
    # Its scan is a Python loop over the sequence, which torch.export unrolls: one length only.
    "mamba": ({"input_ids": {**_IDS, "shape": ["batch", 16], "pad": None}}, [{"batch": 1}, {"batch": 4}]),
    **dict.fromkeys(("electra", "albert", "mpnet", "modernbert", "deberta"), _TEXT),
    **dict.fromkeys(("xlnet", "gptj", "gemma3", "gpt_oss", "deepseek_v3"), _TEXT),
    "mamba2": ({"input_ids": {**_IDS, "pad": None}}, _SIZES),
    **dict.fromkeys(("mistral", "gemma2", "phi", "falcon", "opt", "gpt_neox", "bloom", "qwen3_moe"), _TEXT),
    "bart": ({**_TEXT[0], "decoder_input_ids": {**_IDS, "shape": ["batch", "target"], "pad": None}},
             [{"batch": 1, "seq": 8, "target": 4}, {"batch": 4, "seq": 24, "target": 12}]),
    **dict.fromkeys(("deit", "dinov2", "siglip_vision", "swin"), _batches("pixel_values", 3, 32, 32)),
    **dict.fromkeys(("resnet", "segformer"), _batches("pixel_values", 3, 64, 64)),
    "wav2vec2": _batches("input_values", 800),
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """What became of one architecture. `error` is the largest over the build's proofs and the fresh inputs."""

    name: str
    ok: bool
    instructions: int = 0
    arena: int = 0
    error: float = float("nan")
    seconds: float = 0.0
    reason: str = ""


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", choices=ZOO, help="may be given several times")
    given = parser.parse_args()
    entries = []
    for name in given.only or ZOO:
        entries.append(measure(name))
        print(f"{name}: {'ok' if entries[-1].ok else 'failed: ' + entries[-1].reason}", flush=True)
    print("\n" + entries_table(entries) + "\n")
    named = [entry.ok for entry in entries if entry.name in NAMED]
    what = f"named kinds that build, prove and match within {BOUND:g}"
    rows = [Row(what, len(named) if given.only else 12, sum(named), f"of {len(named)}", "eager", at_least=True)]
    report(rows, given.json, entries=[asdict(entry) for entry in entries])


def entries_table(entries: list[Entry]) -> str:
    head = ["architecture", "result", "instructions", "arena bytes", "largest error", "build s"]
    lines = [[e.name, "ok" if e.ok else "FAILED", e.instructions, f"{e.arena:,}", f"{e.error:.1e}", f"{e.seconds:.1f}"]
             for e in entries]  # fmt: skip
    reasons = [f"{entry.name}: {entry.reason}" for entry in entries if entry.reason]
    return "\n".join([table(head, lines), *reasons])


def measure(name: str) -> Entry:
    """Build in a folder that is thrown away; a failure of any stage is what this looks for, hence the wide except."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = aotair.build(recipe(name), Path(folder) / f"{name}.aotair")
            return _compared(name, path, time.perf_counter() - start)
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            return Entry(name, False, seconds=time.perf_counter() - start, reason=reason)


def recipe(name: str) -> dict:
    inputs, buckets = ZOO[name]
    return {
        "name": name,
        "model": {"factory": f"benchmarks.zoo_models:{name}"},
        "inputs": inputs,
        "buckets": buckets,
    }


def _compared(name: str, path: Path, seconds: float) -> Entry:
    with aotair.load(path, enable_output_clone=True) as model:
        entry = model.program.entry_points[0]
        error = max(bucket.proof.max_abs_error for bucket in entry.buckets)
        error = max(error, _fresh_error(name, model))
        reason = "" if error <= BOUND else f"an error of {error:.1e}"
        return Entry(name, not reason, len(entry.buckets[-1].code), model.program.arena, error, seconds, reason)


def _fresh_error(name: str, model: aotair.Model) -> float:
    """The largest error against the original model, on inputs that the build has not seen."""
    parsed = job_of(parse_recipe(recipe(name)))
    original = load_model(parsed)
    largest = 0.0
    for number, sizes in enumerate(parsed.entries[0].buckets):
        inputs = random_inputs(parsed.entries[0], sizes, _FRESH_STREAM + number)
        with torch.no_grad():
            want = original(**inputs)
        if not want.isfinite().all():
            raise ValueError("the original model gives numbers that are not finite: the zoo uses it wrongly")
        largest = max(largest, float((model(**inputs) - want).abs().max()))
    return largest


if __name__ == "__main__":
    main()
