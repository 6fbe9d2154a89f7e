"""Copies of states: equal, apart from each other and from what they were copied of, whatever they hold."""

import os
import resource

import pytest
import torch

from aotair_runtime.devices import zeros

LARGE = (1 << 16,)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
@pytest.mark.parametrize("shape", [LARGE, (3,), (), (0,), (256, 300)])
def test_copies_are_equal_and_writable(kind: torch.dtype, shape: tuple[int, ...]):
    tensor = torch.zeros(shape, dtype=kind)
    first, second = zeros.copies([tensor, tensor])
    assert first.dtype == kind and first.shape == tensor.shape and torch.equal(first, tensor)
    first.fill_(1)
    assert not second.any() and not tensor.any() and bool(first.all())


def test_what_is_not_zero_is_copied_bit_for_bit():
    tensor = torch.zeros(LARGE)
    tensor[7] = -0.0
    (copy,) = zeros.copies([tensor])
    assert torch.equal(copy.view(torch.int32), tensor.view(torch.int32))
    other = torch.randn(300, 301).t()
    assert torch.equal(zeros.copies([other])[0], other)


def test_zeros_take_no_memory_before_they_are_written_to():
    tensor = torch.zeros(1 << 26)  # 256 MiB
    tensor.any()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = zeros.copies([tensor] * 8)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert len(found) == 8 and (after - before) < 300 << 10, "in KiB: one look at the tensor, not eight copies"


def test_a_copy_of_the_process_has_copies_of_its_own():
    found = zeros.memory(1 << 16)
    if not (process := os.fork()):
        found.numpy().fill(1)
        os._exit(0)
    os.waitpid(process, 0)
    assert not found.any()
