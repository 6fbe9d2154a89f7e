"""Language models of others, prefill and decode from one artifact: the tokens that transformers generates."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch
from cases import ROOT
from marks import long
from nodes import Node
from once import made_once

import aotair
from aotair.model.load import load_model
from aotair.recipe.job import job_of
from aotair.recipe.read import read_recipe

sys.path.insert(0, str(ROOT))
from examples.generate import generate, some_prompts, transformers_generate

TOKENS, LENGTHS = 8, (3, 17, 5, 60, 12, 33, 8, 1)


@pytest.fixture(scope="session")
def language(common_folder: Path) -> Callable[[str, str, str], Path]:
    """The artifact of a recipe for a device and dtype, with two layers, built once."""

    def get(name: str, device: str, dtype: str) -> Path:
        changes = (f"target.device={device}", f"model.dtype={dtype}", "model.kwargs.layers=2")
        recipe = read_recipe(ROOT / "recipes" / f"{name}.yaml", changes)
        return made_once(common_folder / f"{name}.{device}.{dtype}.aotair", lambda path: aotair.build(recipe, path))

    return get


@pytest.fixture
def reference() -> Iterator[Callable[[str, str], torch.nn.Module]]:
    def get(name: str, dtype: str = "float32") -> torch.nn.Module:
        changes = (f"model.dtype={dtype}", "model.kwargs.layers=2")
        with torch.device("cpu"):
            return load_model(job_of(read_recipe(ROOT / "recipes" / f"{name}.yaml", changes)))

    yield get


@pytest.mark.parametrize("name", ["llama", *map(long, ("qwen3", "deepseek_v3"))])
def test_the_tokens_are_those_that_transformers_generates(name: str, node: Node, language, reference):
    with torch.device("cpu"):
        prompts = some_prompts(512, LENGTHS)
        with aotair.load(language(name, node.kind, "float32"), device=node.kind) as model:
            ours = generate(model, prompts, TOKENS)
            again = generate(model, prompts[::-1], TOKENS)[::-1]
        assert ours == transformers_generate(reference(name).model, prompts, TOKENS)
    assert again == ours, "rows of the cache that others used before"


@pytest.mark.parametrize("dtype, atol", [("float32", 1e-4), long("float16", 2e-2), long("bfloat16", 1e-1)])
def test_the_logits_of_each_step(dtype: str, atol: float, node: Node, language, reference):
    """Beside the original in the same dtype, from a prompt on, in the same states."""
    with torch.device("cpu"):
        original = reference("llama", dtype)
        prompts = some_prompts(512, (9, 4))
        ids, mask = torch.zeros(2, 9, dtype=torch.int64), torch.zeros(2, 9, dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)], mask[row, : len(prompt)] = torch.tensor(prompt), 1
        slots, positions = torch.tensor([6, 1]), torch.tensor([9, 4])
        with aotair.load(language("llama", node.kind, dtype), device=node.kind, enable_output_clone=True) as model:
            at = [tensor.to(model.device) for tensor in (ids, mask, slots)]
            pairs = [(model.prefill(*at).cpu(), original.prefill(ids, mask, slots))]
            for _ in range(4):
                tokens = pairs[-1][1].argmax(-1)
                got = model.decode(*(tensor.to(model.device) for tensor in (tokens, positions, slots))).cpu()
                pairs.append((got, original.decode(tokens, positions, slots)))
                positions = positions + 1
    for got, want in pairs:
        torch.testing.assert_close(got, want, atol=atol, rtol=0)


PREFILLS = """
import sys, safetensors.torch, torch
import aotair_runtime as aotair
from examples.generate import some_prompts

artifact, file, *lengths = sys.argv[1:]
prompts = some_prompts(512, [int(length) for length in lengths])
longest = max(map(len, prompts))
ids = torch.tensor([prompt + [0] * (longest - len(prompt)) for prompt in prompts])
mask = torch.tensor([[1] * len(prompt) + [0] * (longest - len(prompt)) for prompt in prompts])
with aotair.load(artifact) as model:
    tokens = model.prefill(ids, mask, torch.arange(len(prompts))).argmax(-1)
    states = model.export_state(range(len(prompts)), rows=longest)
safetensors.torch.save_file(states | {"tokens": tokens}, file)
"""


def test_one_process_prefills_and_another_goes_on(node: Node, language, reference, tmp_path: Path):
    """The first on the CPU, the second on each device, in other slots."""
    lengths, file = (3, 17, 5), tmp_path / "states.safetensors"
    command = [sys.executable, "-c", PREFILLS, language("llama", "cpu", "float32"), file, *map(str, lengths)]
    paths = os.pathsep.join([str(ROOT), *sys.path])
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}, timeout=300)
    with torch.device("cpu"):
        states = safetensors.torch.load_file(file)
        found = [states.pop("tokens")]
        positions, slots = torch.tensor(lengths), torch.tensor([7, 2, 4])
        with aotair.load(language("llama", node.kind, "float32"), device=node.kind) as model:
            model.import_state(states, slots.tolist())
            for _ in range(TOKENS - 1):
                inputs = (tensor.to(model.device) for tensor in (found[-1], positions, slots))
                found.append(model.decode(*inputs).argmax(-1).cpu())
                positions = positions + 1
        want = transformers_generate(reference("llama").model, some_prompts(512, lengths), TOKENS)
    assert torch.stack(found, 1).tolist() == want


def test_prefill_and_decode_share_one_arena_and_their_weights(language):
    path = language("llama", "cpu", "float32")
    with aotair.load(path) as model:
        program = model.program
        assert program.arena == max(b.height for entry in program.entry_points for b in entry.buckets)
        assert len(model._pools) == 1 and set(model.buckets) == {"prefill", "decode"}
        names = [constant.name for constant in program.constants]
        assert len(names) == len(set(names)) and sum("q_proj" in name for name in names) == 2
        assert {state.name for state in program.state} == {f"{kind}{n}" for kind in ("keys", "values") for n in (0, 1)}
        assert all(bucket.height <= 1.01 * bucket.lower_bound for e in program.entry_points for bucket in e.buckets)


def test_padding_leaves_the_caches_alone(language):
    """A call padded in both dimensions writes the rows of its own sequences and nothing else."""
    with aotair.load(language("llama", "cpu", "float32")) as model:
        generator = torch.Generator().manual_seed(0)
        for tensor in model.state.values():
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
        before = {name: tensor.clone() for name, tensor in model.state.items()}
        ids = torch.ones(2, 9, dtype=torch.int64)
        model.prefill(ids, torch.ones_like(ids), torch.tensor([3, 5]))
        model.decode(torch.tensor([7, 7, 7]), torch.tensor([9, 9, 2]), torch.tensor([3, 5, 0]))
        for name, tensor in model.state.items():
            rows = (tensor != before[name]).any(1).nonzero().flatten().tolist()
            written = {3 * 128 + i for i in range(10)} | {5 * 128 + i for i in range(10)} | {2}
            assert set(rows) <= written and len(rows) == len(written), name


def test_greedy_tokens_in_the_graph(tmp_path: Path):
    changes = ("model.kwargs.layers=1", "model.kwargs.greedy=true")
    recipe = read_recipe(ROOT / "recipes" / "llama.yaml", changes)
    with aotair.load(aotair.build(recipe, tmp_path / "a.aotair")) as model:
        original = load_model(job_of(recipe))
        ids = torch.randint(0, 512, (2, 7), generator=torch.Generator().manual_seed(3))
        args = (ids, torch.ones_like(ids), torch.tensor([0, 4]))
        tokens = model.prefill(*args)
        assert tokens.dtype == torch.int64 and torch.equal(tokens, original.prefill(*args))
