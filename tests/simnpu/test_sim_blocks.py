"""A checkpoint's decoder over a paged cache on the device, whose attention reads blocks by lengths of the host."""

from pathlib import Path

import pytest
import torch

import aotair

checkpoints = pytest.importorskip("checkpoints", reason="transformers makes the checkpoint")

PROMPTS = [[5, 9, 200], [17, 3, 3, 8, 250, 99, 1, 4, 31]]
ENTRIES = {"prefill": {"buckets": {"batch": [2], "seq": [16]}}, "decode": {"buckets": {"batch": [1, 2]}}}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.nn.Module]:
    folder = tmp_path_factory.mktemp("blocks")
    model = checkpoints.seeded(checkpoints.llama()).to(torch.float16)
    checkpoints.write_checkpoint(folder / "w", model)
    options = {"cache": "paged", "slots": 4, "length": 64, "block": 16}
    part = {"pretrained": str(folder / "w"), "task": "text-generation", "dtype": "float16", "kwargs": options}
    data = {"name": "blocks", "model": part, "entry_points": ENTRIES, "target": {"device": "npu"}}
    return aotair.build(data, folder / "x.aotair"), model


def test_tokens_are_those_of_transformers_at_lengths_that_change(built: tuple[Path, torch.nn.Module], node):
    if node.kind != "npu":
        raise pytest.UsageError("these tests want --devices npu")
    path, model = built
    table = torch.tensor([[3, 1, 16, 16], [0, 2, 16, 16]]).npu()
    ids, mask = (torch.zeros(2, 9, dtype=torch.int64) for _ in range(2))
    for row, prompt in enumerate(PROMPTS):
        ids[row, : len(prompt)], mask[row, : len(prompt)] = torch.tensor(prompt), 1
    with aotair.load(path, device="npu", enable_output_clone=True) as served:
        tokens = served.prefill(ids.npu(), mask.npu(), table).argmax(-1)
        lengths, found = [len(prompt) for prompt in PROMPTS], [tokens.cpu()]
        for _ in range(19):
            positions = torch.tensor(lengths).npu()
            lengths = [length + 1 for length in lengths]
            tokens = served.decode(tokens, positions, table, lengths).argmax(-1)
            found.append(tokens.cpu())
    assert torch.stack(found, 1).tolist() == [checkpoints.generated(model, prompt, 20) for prompt in PROMPTS]
