"""A batch of prompts through `prefill` and `decode` of an artifact, greedy, beside transformers' own generate.

    python -m examples.generate [llama | qwen3 | deepseek_v3] [--device npu] [--tokens 64]

There is no tokenizer: the recipes' models have seeded weights, and the prompts are random token ids.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch

import aotair
from aotair.model.load import load_model
from aotair.recipe.job import job_of
from aotair.recipe.read import read_recipe

ROOT = Path(__file__).parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="llama", choices=["llama", "qwen3", "deepseek_v3"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=64)
    given = parser.parse_args()
    recipe = ROOT / "recipes" / f"{given.model}.yaml"
    path = ROOT / "build" / "demo" / f"{given.model}.aotair"
    if not path.exists():
        print(f"building {path.name} once …", flush=True)
        aotair.build(recipe, path)
    prompts = some_prompts(vocabulary=512, lengths=(3, 17, 5, 60, 12, 33, 8, 1))
    with aotair.load(path, device=given.device) as model:
        start = time.perf_counter()
        ours = generate(model, prompts, given.tokens)
        seconds = time.perf_counter() - start
    start = time.perf_counter()
    theirs = transformers_generate(load_model(job_of(read_recipe(recipe))).model, prompts, given.tokens)
    other = time.perf_counter() - start
    count = len(prompts) * given.tokens
    for prompt, tokens in zip(prompts, ours):
        print(f"{len(prompt):3} tokens -> {' '.join(map(str, tokens[:12]))} …")
    print(f"aotair: {count / seconds:,.0f} tokens/s; transformers, one prompt after the other: {count / other:,.0f}")
    print("the same tokens" if ours == theirs else "DIFFERENT TOKENS")


def some_prompts(vocabulary: int, lengths: Sequence[int], seed: int = 1) -> list[list[int]]:
    """Random token ids, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocabulary, (n,), generator=generator).tolist() for n in lengths]


def generate(model: aotair.Model, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """`count` greedy tokens for each prompt; prompt number i takes row i of the model's cache."""
    device, slots = model.device, torch.arange(len(prompts))
    longest = max(map(len, prompts))
    ids, mask = (
        torch.zeros(len(prompts), longest, dtype=torch.int64),
        torch.zeros(len(prompts), longest, dtype=torch.int64),
    )
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)], mask[row, : len(prompt)] = torch.tensor(prompt), 1
    tokens = model.prefill(ids.to(device), mask.to(device), slots.to(device)).argmax(-1)
    positions = torch.tensor([len(prompt) for prompt in prompts]).to(device)
    slots, found = slots.to(device), [tokens]
    for _ in range(count - 1):
        tokens = model.decode(tokens, positions, slots).argmax(-1)
        positions = positions + 1
        found.append(tokens)
    return torch.stack(found, 1).tolist()


def transformers_generate(model: torch.nn.Module, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """The same from the library, one prompt at a time."""
    options = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False, "pad_token_id": 0}
    found = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        with torch.no_grad():
            found.append(model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, len(prompt) :].tolist())
    return found


if __name__ == "__main__":
    main()
