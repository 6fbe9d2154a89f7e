"""Checkpoints of transformers' decoders, built without a line of Python: are all tokens those of its own generate?

Each is written to disk as the hub lays it out, with seeded weights, and built from a recipe that names nothing but the
directory. Eight prompts of mixed length get 64 tokens each, greedy, in float32, as one batch through `prefill` and
`decode`. A disagreement says by how much the two best logits differ there: where rounding decides, that is nothing.
`--only NAME` takes one; `--device npu`, in a process with the simulated NPU (`tests/simnpu/run.py`), runs them there.
"""

import importlib.util
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers as tf

import aotair
from aotair_runtime.errors import AotairError
from examples.generate import generate, some_prompts

from .common import Row, options, report
from .decoder_models import DECODERS, seeded

LENGTHS = (3, 17, 5, 30, 12, 24, 8, 1)
TOKENS = 64
ENTRIES = {"prefill": {"buckets": {"batch": [8], "seq": [32]}}, "decode": {"buckets": {"batch": [8]}}}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", action="append", choices=[*DECODERS], help="this decoder")
    parser.add_argument("--device", default="cpu", choices=["cpu", "npu"])
    given = parser.parse_args()
    if importlib.util.find_spec("simcann"):  # this process has the simulated NPU: see tests/simnpu/run.py
        _install_simulated()
    tf.utils.logging.set_verbosity_error()
    tf.utils.logging.disable_progress_bar()
    rows = [row for name in given.only or DECODERS for row in _one(name, given.device)]
    report(rows, given.json)


def _install_simulated() -> None:
    import simnpu

    from aotair.ops import npu

    simnpu.install()
    simnpu.register_fused({op.name: op.kernel for op in npu.OPS})


def _one(name: str, device: str) -> Iterator[Row]:
    model, prompts = seeded(DECODERS[name]()), some_prompts(256, LENGTHS)
    model.generation_config.eos_token_id = None
    want = [_theirs(model, prompt) for prompt in prompts]
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(Path(folder) / name)
        recipe = {"name": name, "model": {"pretrained": f"{folder}/{name}", "kwargs": {"length": 128}}}
        start = time.perf_counter()
        try:
            built = aotair.build({**recipe, "target": {"device": device}, "entry_points": ENTRIES}, f"{folder}/out")
        except AotairError as error:
            print(f"{name}: {error}", flush=True)
            yield Row(f"{name}: wrong tokens of {TOKENS * len(prompts)}", 0, TOKENS * len(prompts), "", "refused")
            return
        seconds = time.perf_counter() - start
        with aotair.load(built, device=device, enable_output_clone=True) as served:
            got = generate(served, prompts, TOKENS)
    wrong = sum(a != b for ours, theirs in zip(got, want) for a, b in zip(ours, theirs))
    if wrong:
        print(f"{name}: {_margin(model, prompts, got, want)}", flush=True)
    row = Row(f"{name}: wrong tokens of {TOKENS * len(prompts)}", 0, wrong, "", f"built in {seconds:.0f} s")
    print(f"{row.what}: {wrong}, {row.peer}", flush=True)
    yield row


def _theirs(model: Any, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    options = {"max_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad():
        found = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    return [int(token) for token in found[0, len(prompt) :]]


def _margin(model: Any, prompts: list[list[int]], got: list[list[int]], want: list[list[int]]) -> str:
    """At the first token that differs, the gap between the two logits, relative to the largest one."""
    for prompt, ours, theirs in zip(prompts, got, want):
        place = next((n for n, (a, b) in enumerate(zip(ours, theirs)) if a != b), None)
        if place is not None:
            with torch.no_grad():
                logits = model(torch.tensor([prompt + theirs[:place]]), use_cache=False).logits[0, -1]
            gap = float(logits[theirs[place]] - logits[ours[place]])
            return f"token {place} after {len(prompt)}: the logits differ by {gap / float(logits.abs().max()):.1e}"
    return ""


if __name__ == "__main__":
    main()
