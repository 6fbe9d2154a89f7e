"""Tensors in the format NZ: cast by torch_npu's own calls, in blocks, and read by the kernels that take them."""

import pytest
import simformats
import simnpu
import torch
import torch_npu

HALF = torch.float16


@pytest.fixture(autouse=True)
def internal_formats():
    torch.npu.config.allow_internal_format = True
    yield
    torch.npu.config.allow_internal_format = False


def cast(values: torch.Tensor) -> torch.Tensor:
    return torch_npu.npu_format_cast(values.npu(), simformats.NZ)


def numbers(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return (torch.arange(torch.Size(shape).numel()) % 127).view(shape).to(dtype)


@pytest.mark.parametrize(
    ("shape", "dtype", "nbytes"),
    [
        ((16, 16), HALF, 512),
        ((65, 97), HALF, 80 * 112 * 2),
        ((65, 97), torch.int8, 80 * 128),
        ((3, 17, 33), torch.int8, 3 * 32 * 64),
        ((17, 17), torch.float32, 32 * 32 * 4),
    ],
)
def test_a_cast_tensor_has_its_values_in_whole_blocks(shape, dtype, nbytes):
    values = numbers(*shape, dtype=dtype)
    made = cast(values)
    assert torch_npu.get_npu_format(made) == simformats.NZ and made.untyped_storage().nbytes() == nbytes
    assert made.shape == values.shape and made.stride() == values.stride()
    assert torch.equal(made.cpu(), values) and torch.equal(made.mT.cpu(), values.mT)
    assert torch.equal(torch_npu.npu_format_cast(made, simformats.ND).cpu(), values)


def test_the_bytes_lie_column_of_blocks_after_column_of_blocks():
    values = numbers(32, 32)
    flat = simformats.blocks(cast(values), simnpu.alias(cast(values)).bytes).bytes.view(HALF)
    columns = [values[:16, :16], values[16:, :16], values[:16, 16:], values[16:, 16:]]
    assert torch.equal(flat[:1024], torch.cat([block.flatten() for block in columns]))


def test_what_lies_beside_the_matrix_is_zero():
    made = cast(numbers(17, 17) + 1)
    flat = simnpu.alias(made).bytes.view(HALF)
    assert int((flat == 0).sum()) == flat.numel() - 17 * 17


def test_nothing_is_cast_unless_the_process_allows_it():
    torch.npu.config.allow_internal_format = False
    assert torch_npu.get_npu_format(cast(numbers(16, 16))) == simformats.ND


def test_the_cast_in_place_is_refused():
    with pytest.raises(NotImplementedError, match="npu_format_cast_"):
        torch_npu.npu_format_cast_(numbers(16, 16).npu(), simformats.NZ)


def test_a_part_of_a_storage_is_not_cast():
    """torch_npu goes by the shape of the storage."""
    assert torch_npu.get_npu_format(cast(numbers(32, 16))) == simformats.NZ
    for part in (numbers(33, 16).npu()[:32], numbers(32 * 16 * 2).npu()[:512].view(32, 16)):
        assert torch_npu.get_npu_format(torch_npu.npu_format_cast(part, simformats.NZ)) == simformats.ND


def test_kernels_that_take_nz_read_it_turned_too():
    x, w = numbers(4, 65) / 64, numbers(97, 65) / 64
    bias = numbers(97)
    weight = cast(w)
    assert torch.equal(torch.mm(x.npu(), weight.t()).cpu(), torch.mm(x, w.t()))
    assert torch.equal(torch.addmm(bias.npu(), x.npu(), weight.t()).cpu(), torch.addmm(bias, x, w.t()))
    assert torch.equal(torch.mm(weight.cpu()[:, :4].npu().t(), weight).cpu(), torch.mm(w[:, :4].t(), w))


def test_other_kernels_refuse_it():
    weight = cast(numbers(32, 32))
    with pytest.raises(RuntimeError, match=r"aten::add\.Tensor got a tensor in FRACTAL_NZ"):
        weight + 1
    with pytest.raises(RuntimeError, match="aten::mm got a tensor in FRACTAL_NZ"):
        torch.mm(weight, numbers(32, 4).npu())
    with pytest.raises(RuntimeError, match="FRACTAL_NZ"):
        torch.mm(numbers(4, 32).npu(), numbers(32, 32).npu(), out=cast(numbers(4, 32)))


def test_parts_of_it_have_no_place():
    weight = cast(numbers(32, 32))
    with pytest.raises(RuntimeError, match="a part"):
        torch.mm(numbers(4, 16).npu(), weight[:16])
    with pytest.raises(RuntimeError, match="one row or column"):
        torch.mm(numbers(4, 1).npu(), cast(numbers(1, 32)))


def test_a_captured_graph_reads_what_lies_there_now(capture):
    x, old, new = numbers(4, 32) / 64, numbers(32, 48) / 64, numbers(32, 48).flip(0) / 64
    weight, given, out = cast(old), x.npu(), torch.empty(4, 48, dtype=HALF, device="npu")
    graph, _ = capture(lambda: torch.mm(given, weight, out=out))
    place = weight.data_ptr()
    for values in (old, new):
        torch.ops.npu.copy_memory_(weight, cast(values))
        graph.replay()
        torch.npu.synchronize()
        assert torch.equal(out.cpu(), torch.mm(x, values)) and weight.data_ptr() == place


def test_copies_go_by_values():
    weight = cast(numbers(17, 33))
    weight.copy_(numbers(17, 33).flip(0))
    assert torch.equal(weight.cpu(), numbers(17, 33).flip(0))
    assert torch_npu.get_npu_format(weight) == simformats.NZ
    assert torch_npu.get_npu_format(weight.clone()) == simformats.ND
