"""The example of a decoding step: sequences grow in paged caches, in batches of any size, like the original's."""

import random

import pytest
import torch

from aotair_runtime.artifact.open import read_program
from recipes.ascend_decode import BLOCK_SIZE, BLOCKS, RANK, ROPE, TABLE

CACHES = tuple((BLOCKS, BLOCK_SIZE, 1, size) for size in (ROPE, RANK, ROPE, RANK))


class Sequences:
    """Up to 4 sequences in caches on a device; each has blocks of its own, in no order."""

    def __init__(self, device):
        self.caches = [torch.zeros(shape, dtype=torch.float16, device=device) for shape in CACHES]
        order = torch.randperm(BLOCKS, generator=torch.Generator("cpu").manual_seed(1), device="cpu")
        self.tables = order.view(-1, TABLE).to(torch.int32)
        self.device = device

    def step(self, model, x, rows: list[int], lengths: list[int]):
        """The next token of the sequences `rows`, whose lengths include it."""
        positions = torch.tensor([length - 1 for length in lengths], device="cpu")
        tables = self.tables[rows]
        slots = tables[range(len(rows)), positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE
        tensors = [tensor.to(self.device) for tensor in (x, positions, slots, tables)]
        return model(*tensors, list(lengths), *self.caches).cpu()


@pytest.fixture
def reference(original):
    return original("ascend_decode").cpu()


def test_sequences_grow_like_the_originals(node, reference):
    model = node.load("ascend_decode", enable_output_clone=True)
    mine, theirs = Sequences(node.device), Sequences(torch.device("cpu"))
    lengths, draw = [0] * 4, random.Random(0)
    generator = torch.Generator("cpu").manual_seed(0)
    for _ in range(40):
        rows = sorted(draw.sample(range(4), draw.randint(1, 4)))
        for row in rows:
            lengths[row] += 1
        x = torch.randn(len(rows), 64, generator=generator, device="cpu").half()
        now = [lengths[row] for row in rows]
        got, want = mine.step(model, x, rows, now), theirs.step(reference, x, rows, now)
        torch.testing.assert_close(got, want, atol=2e-2, rtol=2e-2)
    for cache, other in zip(mine.caches, theirs.caches, strict=True):
        torch.testing.assert_close(cache.cpu(), other, atol=2e-2, rtol=2e-2)
    assert model.stats().captures <= 3


def test_it_is_what_its_first_lines_say(node):
    program = read_program(node.path("ascend_decode"))
    ops = {op.name.partition(".")[0] for op in program.ops}
    wanted = {"npu_add_rms_norm", "npu_dynamic_quant", "npu_quant_matmul", "npu_kv_rmsnorm_rope_cache_v2"}
    assert {f"npu::{name}" for name in wanted} <= ops
    bucket = program.entry_points[0].buckets[0]
    assert bucket.streams == 2
    assert bucket.updated == 2  # for an NPU, wherever it runs
