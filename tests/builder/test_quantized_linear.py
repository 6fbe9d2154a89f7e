"""What quantised linear layers compute, from the definition of each scheme in float64; and that artifacts of them take
other weights."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from marks import long

import aotair
import aotair.ops.npu
from aotair.model.quantized_layers import Int8Linear, WeightOnlyLinear
from aotair.model.quantized_linear import QuantizedWeight, _packed_for_npu, int8_activations, weight_only
from aotair.model.rounding import rounded
from aotair.ops.npu.weight_quant_matmul import unpack_int4
from aotair.target.target import Target

HALVES = (torch.float16, torch.bfloat16)
FLOATS = (*HALVES, torch.float32)
CPU, CUDA, NPU = map(Target, ("cpu", "cuda", "npu"))


def close(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> None:
    """Equal but for the rounding of a result to `dtype`, and of sums in float32."""
    assert got.dtype == dtype and got.shape == want.shape
    step = torch.finfo(dtype).eps
    assert (got.double() - want).abs().max() <= (2 * step + 1e-6) * want.abs().max()


def groups_by_hand(weight: torch.Tensor, bits: int, group: int, kind: torch.dtype) -> torch.Tensor:
    """The weight that whole numbers of so many bits stand for, with one scale for each group, and of 4 bits one zero
    point, number by number."""
    out, width = weight.shape
    found = torch.empty(out, width, dtype=torch.float64)
    for row, first in itertools.product(range(out), range(0, width, group)):
        part = weight[row, first : first + group].float()
        scale, zero, least = (part.abs().max() / 127).to(kind).float(), torch.zeros(()), -127
        if bits == 4:
            middle, least = part.min() / 2 + part.max() / 2, -8
            scale = torch.maximum((part.max() - part.min()) / 15, middle.abs() / 256)
            zero = (-0.5 - middle / (scale if scale else 1)).to(kind).float()
            scale = scale.to(kind).float()
        whole = [round((value / (scale if scale else 1) + zero).item()) for value in part]
        whole = torch.tensor([max(least, min(2 ** (bits - 1) - 1, one)) for one in whole], dtype=torch.float64)
        found[row, first : first + group] = (whole - zero.double()) * scale.double()
    return found


def int8_by_hand(x: torch.Tensor, weight: torch.Tensor, scale: float | None) -> torch.Tensor:
    """Products of int8 with int8, with a scale for each row of the weight and for each token, or one for all."""
    rows = []
    for token in x.reshape(-1, x.shape[-1]).float():
        step = token.abs().max() / 127 if scale is None else torch.tensor(scale)
        whole = (token / step if step else token).round().clamp(-128, 127).long()
        factors = weight.float().abs().amax(1) / 127
        safe = torch.where(factors == 0, 1.0, factors)
        numbers = (weight.float() / safe[:, None]).round().clamp(-127, 127).long()
        rows.append((numbers @ whole).double() * step.double() * factors.double())
    return torch.stack(rows).view(*x.shape[:-1], -1)


def sample(seed: int, out: int, width: int, dtype: torch.dtype, bias: bool, shape: tuple[int, ...] = (2, 3)):
    torch.manual_seed(seed)
    linear = torch.nn.Linear(width, out, bias=bias).to(dtype).requires_grad_(False)
    linear.weight[1] = 0
    return linear, torch.randn(*shape, width).to(dtype)


def plus(result: torch.Tensor, linear: torch.nn.Linear) -> torch.Tensor:
    return result if linear.bias is None else result + linear.bias.double()


# ---- weights alone ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("bits", "group"), [(8, None), (8, 32), (4, 32), (4, 64), (4, None)])
@pytest.mark.parametrize("target", [NPU, CPU], ids=lambda t: t.kind)
def test_weights_alone(target, bits, group, dtype, bias):
    for seed, shape in enumerate([(2, 3), (5,), (1,)]):
        linear, x = sample(seed, 24, 128, dtype, bias, shape)
        kind = torch.bfloat16 if target is CPU else dtype  # whatever the layer's: that of the kernel
        weight = groups_by_hand(linear.weight, bits, group or 128, kind)
        got = WeightOnlyLinear(linear, target, bits, group)(x)
        if target is CPU:
            weight = weight.to(kind).double()  # the product is that of floats
        want = plus(x.to(kind).double() @ weight.T, linear)
        assert got.dtype == dtype
        close(got.to(kind), want, kind)


@pytest.mark.parametrize("zeros", [None, torch.int8, torch.float32])
@pytest.mark.parametrize(("bits", "groups"), [(8, 1), (8, 4), (4, 4), (4, 1)])
@pytest.mark.parametrize("target", [NPU, CPU], ids=lambda t: t.kind)
def test_a_weight_of_another_tool_may_have_zeros(target, bits, groups, zeros):
    torch.manual_seed(bits + groups)
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1)
    rows = torch.randint(low, high, (16, 128), dtype=torch.int8)
    rows[0, :2] = torch.tensor([low, high - 1])
    scale = torch.rand(16, groups).half() / 10
    zero = None if zeros is None else torch.randint(low, high, (16, groups)).to(zeros)
    wide = rows.double().view(16, groups, -1)
    wide = ((wide - (0 if zero is None else zero.double()[..., None])) * scale.double()[..., None]).flatten(1)
    weight, x = QuantizedWeight(rows, scale, zero, bits), torch.randn(3, 128).half()
    torch.testing.assert_close(weight.dequantized(torch.float64), wide, atol=1e-6, rtol=1e-6)
    if target is CPU:
        wide = wide.half().double()
    close(weight_only(x, weight, None, target), x.double() @ wide.T, torch.float16)


@pytest.mark.parametrize(
    ("bits", "group", "out", "dtype"), [(4, 48, 8, HALVES[0]), (4, 32, 6, HALVES[0]), (8, 32, 8, FLOATS[2])]
)
def test_a_weight_that_npus_have_no_kernel_for_is_one_of_floats(bits, group, out, dtype):
    linear, x = sample(0, out, 96, dtype, True)
    want = x.double() @ groups_by_hand(linear.weight, bits, group, dtype).to(dtype).double().T
    close(WeightOnlyLinear(linear, NPU, bits, group)(x), plus(want, linear), dtype)


def test_a_weight_may_lie_turned():
    turned = torch.randn(64, 8).t()
    for group in (None, 32):
        got = rounded(turned, 8, group).dequantized(torch.float64)
        torch.testing.assert_close(got, groups_by_hand(turned, 8, group or 64, torch.float32), atol=1e-6, rtol=1e-6)


def test_int4_lies_in_int32_with_the_first_of_eight_lowest():
    numbers = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7], [-8, -7, -6, -5, -4, -3, -2, -1]])
    packed = _packed_for_npu(numbers).flatten().tolist()
    assert [f"{value & 0xFFFFFFFF:08x}" for value in packed] == ["76543210", "fedcba98"]
    torch.manual_seed(0)
    numbers = torch.randint(-8, 8, (5, 64), dtype=torch.int8)
    assert torch.equal(unpack_int4(_packed_for_npu(numbers)), numbers.int())


# ---- int8 activations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("target", [NPU, CPU], ids=lambda t: t.kind)
def test_int8_by_int8(target, static, dtype, bias):
    for seed, (out, width, shape) in enumerate([(24, 64, (2, 3)), (5, 17, (4,)), (3, 1, (1, 1)), (40, 300, (33,))]):
        linear, x = sample(seed, out, width, dtype, bias, shape)
        x.view(-1, width)[0] = 0
        if target is NPU and dtype == torch.float32:
            continue
        largest = x.float().abs().max().item() * 0.7  # what lies beyond is cut off
        scale = torch.tensor(largest / 127, dtype=torch.float32).item() if static else None
        got = Int8Linear(linear, target, largest if static else None)(x)
        close(got, plus(int8_by_hand(x, linear.weight, scale), linear), dtype)


def test_cudas_kernel_is_given_shapes_that_it_takes(monkeypatch):
    """More than 16 rows, and multiples of 8: what CUDA's own check asks for."""
    real = torch._int_mm

    def checked(left, right):
        assert left.shape[0] > 16 and left.shape[1] % 8 == 0 and right.shape[1] % 8 == 0
        return real(left, right)

    monkeypatch.setattr(torch, "_int_mm", checked)
    for out, width, shape in [(24, 64, (2, 3)), (5, 17, (4,)), (3, 1, (1, 1))]:
        linear, x = sample(0, out, width, torch.float32, True, shape)
        close(Int8Linear(linear, CUDA)(x), plus(int8_by_hand(x, linear.weight, None), linear), torch.float32)


def test_the_smallest_numbers_do_not_wrap():
    """The largest of a token over 127 may be no float any more."""
    x = torch.full((1, 4), 2e-43)
    weight = rounded(torch.eye(4), 8)
    assert (int8_activations(x, weight, None, CPU) >= 0).all()
    assert int8_activations(torch.full((1, 4), float("inf")), weight, None, CPU).isnan().any(), (
        "and infinity stays seen"
    )


def test_rows_beside_a_row_of_poison_stay():
    linear, x = sample(0, 8, 32, torch.float32, True, (4,))
    want = Int8Linear(linear, CPU)(x)
    x[3] = float("nan")
    assert torch.equal(Int8Linear(linear, CPU)(x)[:3], want[:3])


# ---- artifacts -------------------------------------------------------------------------------------------------------


class Mlp(torch.nn.Module):
    def __init__(self, seed: int, dtype: torch.dtype):
        super().__init__()
        torch.manual_seed(seed)
        self.up, self.down = torch.nn.Linear(64, 128), torch.nn.Linear(128, 64, bias=False)
        self.to(dtype).requires_grad_(False)

    def forward(self, x):
        return self.down(torch.nn.functional.silu(self.up(x)))


class Wide(torch.nn.Module):
    """Layers that see the same inputs whatever the weights are."""

    def __init__(self, seed: int, dtype: torch.dtype):
        super().__init__()
        torch.manual_seed(seed)
        self.one, self.two = torch.nn.Linear(64, 16), torch.nn.Linear(64, 8, bias=False)
        self.to(dtype).requires_grad_(False)

    def forward(self, x):
        return self.one(x), self.two(x.tanh())


def built(model: torch.nn.Module, path: Path, target: str, dtype: torch.dtype, scheme: str) -> Path:
    row = {"shape": ["n", 64], "dtype": str(dtype).removeprefix("torch."), "pad": "any"}
    asked = {"linear": scheme} | ({"group_size": 32} if scheme == "int4_weight_only" else {})
    parts = {"inputs": {"x": row}, "buckets": {"n": [1, 4, 24]}, "target": {"device": target}, "quantize": asked}
    return aotair.build(model=model, out=path, **parts)


CASES = [
    *(long(Mlp, "cpu", dtype, "int8_dynamic") for dtype in FLOATS[1:]),
    *(long(Wide, "cpu", dtype, "int8_static") for dtype in FLOATS[:-1]),
    (Mlp, "cpu", FLOATS[0], "int8_dynamic"),
    (Wide, "cpu", FLOATS[-1], "int8_static"),
    (Mlp, "cuda", torch.bfloat16, "int8_dynamic"),
    (Mlp, "npu", torch.float16, "int8_dynamic"),
    (Mlp, "npu", torch.bfloat16, "int8_weight_only"),
    *((Mlp, "npu", dtype, "int4_weight_only") for dtype in HALVES),
    (Wide, "npu", torch.bfloat16, "int8_static"),
]


@pytest.mark.parametrize(("kind", "target", "dtype", "scheme"), CASES, ids=lambda v: getattr(v, "__name__", str(v)))
def test_an_artifact_takes_a_checkpoint_of_floats(tmp_path, kind, target, dtype, scheme):
    one, two, x = (
        kind(1, dtype),
        kind(2, dtype),
        torch.randn(3, 64, generator=torch.Generator().manual_seed(0)).to(dtype),
    )
    safetensors.torch.save_file(two.state_dict(), tmp_path / "two.safetensors")
    options = {"device": "cpu", "allow_namespaces": ["npu"], "enable_output_clone": True}
    path = built(one, tmp_path / "one.aotair", target, dtype, scheme)
    fresh = aotair.load(built(two, tmp_path / "two.aotair", target, dtype, scheme), **options)
    model = aotair.load(path, **options)
    kinds = {constant.kind for constant in model.program.constants}
    assert "derived" in kinds and not any(c.name.endswith(".weight") for c in model.program.constants), "whole numbers"
    assert ("fixed" in kinds) == (scheme == "int8_static")
    flat = [entry.flat([x]) for entry in (model.entry_points["forward"], fresh.entry_points["forward"])]
    assert not all(map(torch.equal, *flat))
    before = flat[0]
    model.load_weights(tmp_path / "two.safetensors")
    assert all(map(torch.equal, model.entry_points["forward"].flat([x]), flat[1])), "bit for bit"
    for got, original in zip(flat[1], two(x) if kind is Wide else (two(x),), strict=True):
        assert (got.float() - original.float()).norm() < (0.2 if "int4" in scheme else 0.05) * original.float().norm()
    safetensors.torch.save_file(one.state_dict(), tmp_path / "one.safetensors")
    model.load_weights(tmp_path / "one.safetensors")
    assert all(map(torch.equal, model.entry_points["forward"].flat([x]), before)), "and back"


def test_a_processor_that_cuts_off_sums_of_int8_refuses_to_load(tmp_path):
    path = built(Mlp(1, torch.float32), tmp_path / "m.aotair", "cpu", torch.float32, "int8_dynamic")
    code = f"""
import torch, aotair_runtime
most = torch.full((16, 64), 127, dtype=torch.int8)
exact = bool((torch._int_mm(most, most.t()) == 64 * 127 * 127).all())
try:
    aotair_runtime.load({str(path)!r})
    print(exact, "loaded")
except aotair_runtime.errors.RequirementError as error:
    print(exact, "sums products of int8 in 16 bits" in str(error))
"""
    said = {}
    for isa in ("AVX2", "ALL"):
        environment = dict(os.environ) | {"ONEDNN_MAX_CPU_ISA": isa}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
        said[isa] = done.stdout.split()
    assert said["ALL"] == ["True", "loaded"]
    assert said["AVX2"] in (["False", "True"], ["True", "loaded"]), "where oneDNN has no such limit, it is exact"
