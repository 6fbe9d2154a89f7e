"""What one process of the generation benchmark does: `python -m benchmarks.generation_node WHAT ARGUMENTS`.

Prints one line of JSON last; times in seconds, from after the import of torch.
"""

import importlib.util
import json
import statistics
import sys
import time

import torch

COUNT = 64
LENGTHS = (3, 17, 5, 60, 12, 33, 8, 1)
PROMPT = list(range(7, 17))  # of the first token


def tokens(device: str, name: str, wide: str, half: str) -> dict:
    """Wrong tokens against transformers in float32, and the largest errors of logits over the steps of one prompt."""
    import aotair
    from aotair.model.load import load_model
    from aotair.recipe.job import job_of
    from aotair.recipe.read import read_recipe
    from examples.generate import generate, some_prompts, transformers_generate

    if importlib.util.find_spec("simcann"):
        import simnpu

        simnpu.install()
        from aotair.ops import npu

        simnpu.register_fused({op.name: op.kernel for op in npu.OPS})
    prompts = some_prompts(512, LENGTHS)
    with aotair.load(wide, device=device) as model:
        ours = generate(model, prompts, COUNT)
    original = load_model(job_of(read_recipe(f"recipes/{name}.yaml")))
    theirs = transformers_generate(original.model, prompts, COUNT)
    wrong = sum(a != b for mine, other in zip(ours, theirs) for a, b in zip(mine, other))
    halved = load_model(job_of(read_recipe(f"recipes/{name}.yaml", ("model.dtype=float16",))))
    return {
        "wrong": wrong,
        "float32": _logits(aotair.load(wide, device=device, enable_output_clone=True), original, prompts),
        "float16": _logits(aotair.load(half, device=device, enable_output_clone=True), halved, prompts),
    }


def _logits(model, original, prompts: list[list[int]]) -> float:
    """The largest difference of logits over a prefill of all prompts and 16 steps, on the same tokens."""
    longest, slots = max(map(len, prompts)), torch.arange(len(prompts))
    ids, mask = (torch.zeros(len(prompts), longest, dtype=torch.int64) for _ in range(2))
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)], mask[row, : len(prompt)] = torch.tensor(prompt), 1
    positions, worst = mask.sum(1), 0.0
    steps = [("prefill", (ids, mask, slots))]
    for _ in range(17):
        name, given = steps[-1]
        with torch.no_grad():
            want = getattr(original, name)(*given)
        got = model.entry_points[name](*(tensor.to(model.device) for tensor in given)).cpu()
        worst = max(worst, (got.double() - want.double()).abs().max().item())
        steps.append(("decode", (want.argmax(-1), positions, slots)))
        positions = positions + 1
    return worst


# ---- start-up -------------------------------------------------------------------------------------------------------


def start(path: str) -> dict:
    begin = time.perf_counter()
    import aotair_runtime

    model = aotair_runtime.load(path)
    ids = torch.tensor([PROMPT])
    token = model.prefill(ids, torch.ones_like(ids), torch.tensor([0])).argmax(-1).item()
    return {"seconds": time.perf_counter() - begin, "token": token}


def compile_start() -> dict:
    """The same from torch.compile, which has to have the model in Python: making it is not counted."""
    model, _ = _models()
    ids = torch.tensor([PROMPT + [0] * 6])
    mask = torch.tensor([[1] * len(PROMPT) + [0] * 6])
    begin = time.perf_counter()
    compiled = torch.compile(model.prefill, mode="reduce-overhead", dynamic=False)
    with torch.no_grad():
        token = compiled(ids, mask, torch.tensor([0])).argmax(-1).item()
    return {"seconds": time.perf_counter() - begin, "token": token}


def _models():
    from aotair.model.load import load_model

    from .generation import large_recipe

    recipe = large_recipe()
    return load_model(recipe), recipe


# ---- speed ----------------------------------------------------------------------------------------------------------


def speed(path: str, batch: str) -> dict:
    """Tokens a second of decode steps at position 64, taking turns."""
    import aotair

    model, _ = _models()
    count = int(batch)
    given = (torch.arange(count), torch.full((count,), 64), torch.arange(count))
    loaded = aotair.load(path)
    compiled = torch.compile(model.decode, mode="reduce-overhead", dynamic=False)
    calls = {
        "aotair": lambda: loaded.decode(*given),
        "eager": lambda: model.decode(*given),
        "compile": lambda: compiled(*given),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    with torch.no_grad():
        for name in calls:
            for _ in range(3):
                calls[name]()
        for _ in range(40):
            for name, call in calls.items():
                begin = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - begin)
        begin = time.perf_counter()
        model.model.generate(
            torch.ones(count, 8, dtype=torch.int64), max_new_tokens=32, min_new_tokens=32, do_sample=False
        )
        own = count * 32 / (time.perf_counter() - begin)
    return {name: count / statistics.median(found) for name, found in times.items()} | {"generate": own}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
