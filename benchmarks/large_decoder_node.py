"""One process of `benchmarks.large_decoder`: it builds the checkpoint, or serves the artifact, and prints times."""

import json
import sys
import time
from pathlib import Path

import torch

from .large_decoder import ENTRIES, KWARGS


def build(checkpoint: str, out: str) -> dict[str, object]:
    from aotair.builder import build_with_summary
    from aotair.summary import Listener

    recipe = {
        "name": "large-decoder",
        "model": {"pretrained": checkpoint, "dtype": "bfloat16", "kwargs": KWARGS},
        "entry_points": ENTRIES,
        "verify": {"level": "sampled"},
    }
    begin = time.perf_counter()
    summary = build_with_summary(recipe, out, Listener())
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "stages": ", ".join(f"{name} {took:.0f}" for name, took in summary.seconds.items())}


def serve(artifact: str) -> dict[str, object]:
    import aotair_runtime

    begin = time.perf_counter()
    model = aotair_runtime.load(Path(artifact), capture="lazy", enable_output_clone=True)
    load = time.perf_counter() - begin
    ids, slots = torch.arange(7, 17)[None], torch.tensor([0])
    token = model.prefill(ids, torch.ones_like(ids), slots).argmax(-1)
    first = time.perf_counter() - begin
    model.decode(token, torch.tensor([10]), slots)
    begin = time.perf_counter()
    model.decode(token, torch.tensor([11]), slots)
    return {"load": load, "first": first, "step": time.perf_counter() - begin}


if __name__ == "__main__":
    print(json.dumps({"build": build, "serve": serve}[sys.argv[1]](*sys.argv[2:])))
