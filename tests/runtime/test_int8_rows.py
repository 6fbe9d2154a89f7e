"""Products of floats with weights of int8 on the CPU: the numbers of the definition, by whatever kernel, and no memory
read that is not theirs."""

from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import TwoLayers

import aotair
from aotair_runtime.devices import int8_rows
from aotair_runtime.devices.int8_rows import MOST_ROWS, OP, PACKED

OUT = torch.ops.air.linear_int8.out
BF16 = torch.bfloat16


def arguments(rows: int = 3, out: int = 24, width: int = 64, kind: torch.dtype = BF16, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=generator).to(kind)
    weight = torch.randint(-127, 128, (out, width), generator=generator).to(torch.int8)
    return x, weight, (torch.rand(out, generator=generator) / 127).to(kind)


def wanted(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (x.double() @ weight.double().t()) * scale.double()


def near(got: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> None:
    """Equal but for the rounding of a result to its dtype, and of sums, whose parts may cancel each other."""
    want, parts = wanted(x, weight, scale), wanted(x.abs(), weight.double().abs(), scale)
    step = torch.finfo(got.dtype).eps
    assert (got.double() - want).abs().max() <= 2 * step * want.abs().max() + 1e-6 * parts.max()


@given(
    st.integers(1, MOST_ROWS + 3), st.integers(1, 40), st.sampled_from([1, 16, 31, 32, 64, 96, 100]),
    st.sampled_from([BF16, torch.float16, torch.float32]), st.integers(0, 100),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_numbers_beside_the_definition(rows, out, width, kind, seed):
    given = arguments(rows, out, width, kind, seed)
    near(OP(*given), *given)
    result = torch.empty(rows, out, dtype=kind)
    assert OUT(*given, out=result) is result and torch.equal(result, OP(*given))


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("start", range(1, 33))
def test_no_address_is_taken_for_another(which: int, start: int):
    """Torch's kernel ends the process where it is given a row at an odd address."""
    given = list(arguments())
    memory = torch.empty(given[which].numel() + 64, dtype=given[which].dtype)
    place = memory[start : start + given[which].numel()].view(given[which].shape)
    given[which] = place.copy_(given[which])
    near(OP(*given), *given)
    packed = int8_rows.packed(given[1])
    result = torch.empty(3, 24, dtype=BF16)
    packed.call(OUT, (given[0], None, given[2]), {"out": result})()
    near(result, *given)


def test_a_packed_weight_keeps_its_address_and_takes_other_values():
    x, weight, scale = arguments()
    packed, out = int8_rows.packed(weight), torch.empty(3, 24, dtype=BF16)
    call = packed.call(OUT, (x, None, scale), {"out": out})
    call()
    assert torch.equal(out, OP(x, weight, scale)) and packed.nbytes == weight.numel()
    packed.fill(weight.flip(0))
    call()
    assert torch.equal(out, OP(x, weight.flip(0), scale))


@pytest.mark.parametrize(
    "weight",
    [torch.ones(4, 33), torch.ones(4), torch.ones(0, 32), torch.ones(32, 4).t()],
)
def test_a_weight_that_the_kernel_does_not_take_stays_as_it_is(weight: torch.Tensor):
    assert int8_rows.packed(weight.to(torch.int8)) is None and int8_rows.packed(torch.ones(4, 32)) is None


@pytest.mark.parametrize(
    "change",
    [
        {"x": torch.ones(3, 32).to(BF16)},
        {"x": torch.ones(3, 64)},
        {"x": torch.ones(1, 3, 64).to(BF16)},
        {"x": torch.ones(3, 64, dtype=torch.int8)},
        {"scale": torch.ones(23).to(BF16)},
        {"scale": torch.ones(24)},
        {"out": torch.ones(3, 23).to(BF16)},
        {"out": torch.ones(3, 24)},
    ],
)
def test_arguments_that_do_not_fit_are_refused(change: dict):
    x, weight, scale = arguments()
    right = {"x": x, "scale": scale, "out": torch.empty(3, 24, dtype=BF16)}
    packed = int8_rows.packed(weight)
    for asked, fits in ((right, True), (right | change, False)):
        call = packed.call(OUT, (asked["x"], None, asked["scale"]), {"out": asked["out"]})
        assert (call is not None) == fits
    wrong = right | change
    with pytest.raises(ValueError, match="linear_int8"):
        OUT(wrong["x"], weight, wrong["scale"], out=wrong["out"])


def test_a_result_over_its_input_is_made_apart():
    x, weight, scale = arguments(out=64)
    want, packed = OP(x, weight, scale), int8_rows.packed(weight)
    packed.call(OUT, (x, None, scale), {"out": x})()
    assert torch.equal(x, want)


def test_another_op_is_none_of_its():
    x, weight, scale = arguments()
    op = torch.ops.air.quant_matmul.out
    assert int8_rows.packed(weight).call(op, (x, None, scale), {"out": torch.empty(3, 24, dtype=BF16)}) is None


def in_int8(path: Path, model: TwoLayers) -> Path:
    x = {"shape": ["n", 3, 64], "dtype": str(model.up.weight.dtype).removeprefix("torch."), "pad": "any"}
    given = {"x": x}
    return aotair.build(model=model, out=path, inputs=given, buckets={"n": [2, 40]},
                        quantize={"linear": "int8_weight_only"})  # fmt: skip


@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32])
def test_few_rows_are_read_by_the_kernel_and_many_as_floats_and_checkpoints_are_rounded_again(tmp_path: Path, dtype):
    x = torch.linspace(-1, 1, 40 * 3 * 64).view(40, 3, 64).to(dtype)
    original = TwoLayers(0, dtype)
    path = in_int8(tmp_path / "m.aotair", original)
    with aotair.load(path, enable_output_clone=True) as served, aotair.load(path, pack_weights=False) as plain:
        names = [{served.program.ops[served.program.instructions[n].op].name for n in bucket.code}
                 for bucket in served.program.entry_points[0].buckets]  # fmt: skip
        assert [PACKED in found for found in names] == [True, False]
        assert len(served._resident.packed) == 2 and not plain._resident.packed
        for rows in (1, 2, 40):
            with torch.no_grad():
                want = original(x[:rows]).float()
            got = served(x[:rows])
            assert got.dtype == dtype and 0 < (got.float() - want).norm() < 0.02 * want.norm()
            torch.testing.assert_close(got, plain(x[:rows]), atol=0.02, rtol=0.02)
        safetensors.torch.save_file(TwoLayers(1, dtype).state_dict(), tmp_path / "w.safetensors")
        served.load_weights(tmp_path / "w.safetensors")
        with aotair.load(in_int8(tmp_path / "1.aotair", TwoLayers(1, dtype))) as fresh:
            assert torch.equal(served(x), fresh(x)) and torch.equal(served(x[:1]), fresh(x[:1]))
