"""Weights packed for the processor: made at load, read by linear layers alone, and made again for other weights."""

import mmap
import shutil
import struct
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from marks import long
from models import TwoLayers

import aotair
from aotair_runtime.capture.bind import Memory, bind
from aotair_runtime.devices import int4, onednn, onednn_library, onednn_product, open_device
from aotair_runtime.errors import AotairError, MalformedError, WeightsError
from aotair_runtime.format import codec
from aotair_runtime.format.packed import packed_constants
from aotair_runtime.format.rules import check_program
from aotair_runtime.format.schema import Form, Program, Space

BF16 = torch.bfloat16
NO_BF16 = "oneDNN has no bfloat16 products on this processor"


def packing(test):
    """A test of packed weights: of those that a library of oneDNN packs, and of those that torch does."""
    there = pytest.mark.skipif(not onednn.packs("aten::linear", BF16), reason=NO_BF16)
    return there(pytest.mark.usefixtures("packer")(test))


@pytest.fixture(params=["library", "torch"])
def packer(request, monkeypatch) -> type:
    if request.param == "torch":
        monkeypatch.setattr(onednn_product, "library", lambda: None)
        return onednn.OnednnWeight
    if onednn_library.library() is None:
        pytest.skip(f"a library of oneDNN: {onednn_library.why_none()}")
    if not onednn_product.has_kernels(BF16):
        pytest.skip("the library of oneDNN has no fast bfloat16 products on this processor, so torch packs them")
    return onednn_product.LibraryWeight


class Layers(torch.nn.Module):
    """Linear layers of all kinds, over a weight that is tied, one that is computed, and one that is normed too."""

    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.up, self.down = torch.nn.Linear(64, 96), torch.nn.Linear(96, 64, bias=False)
        self.tied = torch.nn.Linear(64, 96)
        self.tied.weight = self.up.weight
        self.scale = torch.nn.Parameter(torch.rand(64))
        self.to(BF16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = torch.relu(self.up(x)) + self.tied(x)
        computed = self.down.weight.abs() * self.scale.unsqueeze(1)
        return self.down(wide) + torch.nn.functional.linear(wide, computed) + self.up.weight.sum()


def built(path: Path, model: torch.nn.Module, **parts) -> Path:
    x = {"shape": ["n", 3, 64], "dtype": "bfloat16", "pad": "any"}
    verify = {"atol": 0.1, "rtol": 0.1}
    return aotair.build(model=model, out=path, inputs={"x": x}, buckets={"n": [2, 300]}, verify=verify, **parts)


X = torch.linspace(-1, 1, 2 * 3 * 64).view(2, 3, 64).to(BF16)


def answer(model) -> bytes:
    return model(X).view(torch.int16).numpy().tobytes()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("packed") / "m.aotair", Layers(0))


def test_few_rows_read_packed_weights_and_many_do_not(path: Path):
    program = codec.parse((path / "program.msgpack").read_bytes(), "x")
    few, many = program.entry_points[0].buckets
    assert [item.space for item in few.tensors].count(Space.PACKED) == 3  # a tied weight once
    assert not any(item.space == Space.PACKED for item in many.tensors)
    names = [program.constants[number].name for number, _ in packed_constants(program)]
    assert [name.partition(":")[0] for name in names] == ["up.weight", "down.weight", "scale"]


def test_a_packed_weight_gives_what_the_plain_one_gives(path: Path):
    with aotair.load(path) as packed, aotair.load(path, pack_weights=False) as plain:
        assert not plain._resident.packed and not promised(plain)
        with torch.no_grad():
            want = Layers(0)(X)
        torch.testing.assert_close(packed(X), want, atol=0.05, rtol=0.05)
        torch.testing.assert_close(plain(X), want, atol=0.05, rtol=0.05)


@packing
def test_packed_weights_are_made_at_load_and_promised_to_the_byte(path: Path):
    with aotair.load(path) as model:
        held = sum(one.nbytes for one in model._resident.packed.values())
        assert len(model._resident.packed) == 3 and held == promised(model) > 0
        (there,) = [c for c in model.memory().categories if c.name == "weights packed for the processor"]
        assert there.promised == there.reserved == there.used == held
        assert "weights packed for the processor" in str(model.promise)


def promised(model) -> int:
    return next(item.nbytes for item in model.promise.items if item.name == "weights packed for the processor")


def test_a_recipe_may_leave_weights_as_they_are(tmp_path: Path):
    plain = built(tmp_path / "m.aotair", Layers(0), target={"pack_weights": False})
    program = codec.parse((plain / "program.msgpack").read_bytes(), "x")
    assert not packed_constants(program)


@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 64), (torch.float16, 256)])
def test_small_weights_and_those_of_other_dtypes_stay_as_they_are(tmp_path: Path, dtype, width: int):
    x = {"input": {"shape": [2, width], "dtype": str(dtype).removeprefix("torch.")}}
    made = aotair.build(model=torch.nn.Linear(width, width).to(dtype), out=tmp_path / "m.aotair", inputs=x,
                        verify={"atol": 1e-2, "rtol": 1e-2})  # fmt: skip
    assert not packed_constants(codec.parse((made / "program.msgpack").read_bytes(), "x"))


def test_a_node_whose_processor_has_no_such_form_reads_them_as_they_are(path: Path, monkeypatch):
    with aotair.load(path, pack_weights=False) as plain:
        want = answer(plain)
    monkeypatch.setattr(onednn, "_has_kernels", lambda: False)
    monkeypatch.setattr(onednn_product, "library", lambda: None)
    with aotair.load(path) as model:
        assert not model._resident.packed and not promised(model) and answer(model) == want


# ---- other weights -------------------------------------------------------------------------------------------------


@packing
def test_other_weights_are_packed_again_at_the_same_addresses(path: Path, tmp_path: Path):
    with aotair.load(path) as model:
        first, captures = answer(model), model.stats().captures
        addresses = {n: one.address for n, one in model._resident.packed.items()}
        for seed in (1, 2):
            safetensors.torch.save_model(Layers(seed), str(tmp_path / "w.safetensors"))
            model.load_weights(tmp_path / "w.safetensors")
            with aotair.load(built(tmp_path / f"{seed}.aotair", Layers(seed))) as fresh:
                assert answer(model) == answer(fresh) != first
        assert {n: one.address for n, one in model._resident.packed.items()} == addresses
        assert model.stats().captures == captures
        model.load_weights(path)
        assert answer(model) == first


@packing
@pytest.mark.parametrize(("before", "after"), [(1, 16), (16, 1)])
@pytest.mark.parametrize("width", [2, 5, 16, 48, 64])
def test_other_weights_are_packed_as_at_the_load_whatever_the_number_of_threads(before: int, after: int, width: int):
    """oneDNN's layout of narrow weights depends on it, and in one size lies more than one layout."""
    torch.manual_seed(0)
    threads, op = torch.get_num_threads(), torch.ops.aten.linear.default
    try:
        for out in (4, 33, 512):
            torch.set_num_threads(before)
            weight, other, x = (torch.randn(size, width).to(BF16) for size in (out, out, 3))
            packed = onednn.OnednnWeight(weight)
            assert packed.nbytes == onednn.packed_bytes(weight.shape, BF16)
            torch.set_num_threads(after)
            packed.fill(other)
            assert torch.get_num_threads() == after
            torch.testing.assert_close(packed.call(op, (x, other), {})(), x @ other.t(), atol=0.1, rtol=0.05)
    finally:
        torch.set_num_threads(threads)


@packing
def test_what_cannot_be_packed_again_leaves_the_old_weights(path: Path, tmp_path: Path, packer, monkeypatch):
    safetensors.torch.save_model(Layers(1), str(tmp_path / "w.safetensors"))
    with aotair.load(path) as model:
        before, calls, fill = answer(model), iter(range(99)), packer.fill

        def broken(self, weight):
            if next(calls) == 1:
                raise RuntimeError("planted")
            fill(self, weight)

        monkeypatch.setattr(packer, "fill", broken)
        with pytest.raises(RuntimeError, match="planted"):
            model.load_weights(tmp_path / "w.safetensors")
        assert answer(model) == before


@packing
def test_weights_that_give_nan_leave_the_old_ones(path: Path, tmp_path: Path):
    spoilt = Layers(1)
    spoilt.up.weight.data[0, 0] = float("nan")
    safetensors.torch.save_model(spoilt, str(tmp_path / "w.safetensors"))
    with aotair.load(path) as model:
        before = answer(model)
        with pytest.raises(WeightsError, match="NaN"):
            model.load_weights(tmp_path / "w.safetensors")
        assert answer(model) == before


class Strided(torch.nn.Module):
    """A bias with gaps, which oneDNN would read as if it had none."""

    def __init__(self, expanded: bool):
        super().__init__()
        torch.manual_seed(0)
        self.weight, self.pairs = torch.nn.Parameter(torch.randn(64, 64)), torch.nn.Parameter(torch.randn(64, 2))
        self.expanded = expanded
        self.to(BF16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = self.pairs[0, :1].expand(64) if self.expanded else self.pairs[:, 0]
        return torch.nn.functional.linear(x, self.weight, bias)


@pytest.mark.parametrize("expanded", [True, False])
def test_a_bias_with_gaps_is_read_where_it_lies(tmp_path: Path, expanded: bool):
    model, x = Strided(expanded), X.reshape(-1, 64)
    path = aotair.build(model=model, out=tmp_path / "m.aotair", inputs={"x": x}, verify={"atol": 0.05, "rtol": 0.05})
    model.pairs.data.mul_(-3)
    safetensors.torch.save_file(model.state_dict(), tmp_path / "w.safetensors")
    with aotair.load(path) as served, torch.no_grad():
        served.load_weights(tmp_path / "w.safetensors")
        torch.testing.assert_close(served(x), model(x), atol=0.05, rtol=0.05)


# ---- float32 ---------------------------------------------------------------------------------------------------------


class Wide(torch.nn.Module):
    """Products of float32 with and without a bias, a weight that is tied, one that is computed, one that is small, and
    an input with gaps."""

    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.up, self.down = torch.nn.Linear(192, 256), torch.nn.Linear(256, 192, bias=False)
        self.tied, self.small = torch.nn.Linear(192, 256, bias=False), torch.nn.Linear(192, 8)
        self.tied.weight = self.up.weight
        self.scale = torch.nn.Parameter(torch.rand(192))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = torch.relu(self.up(x)) + self.tied(x)
        computed = self.down.weight.abs() * self.scale.unsqueeze(1)
        narrow = self.down(wide) + torch.nn.functional.linear(wide, computed)
        return torch.cat([narrow, self.small(x), self.up(x.transpose(0, 1)).transpose(0, 1)], -1)


WIDE = torch.linspace(-1, 1, 3 * 5 * 192).view(3, 5, 192)


def built_wide(path: Path, model: torch.nn.Module, **parts) -> Path:
    x = {"shape": ["n", 5, 192], "dtype": "float32", "pad": "any"}
    return aotair.build(model=model, out=path, inputs={"x": x}, buckets={"n": [1, 4, 100]}, **parts)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_wide(tmp_path_factory.mktemp("packed") / "wide.aotair", Wide(0))


@pytest.fixture(params=["library", "torch", "does not pack"])
def packs_float32(request, monkeypatch) -> bool:
    """A node with a library of oneDNN; without, a processor on which torch's is faster than MKL, and one on which it is
    not."""
    if request.param == "library":
        if not onednn_product.has_kernels(torch.float32):
            pytest.skip(f"fast kernels of a library of oneDNN: {onednn_library.why_none() or 'not for this processor'}")
        return True
    monkeypatch.setattr(onednn_product, "library", lambda: None)
    monkeypatch.setattr(onednn, "_is_amd", lambda: request.param == "torch")
    return request.param == "torch"


def test_each_node_packs_products_of_float32_or_does_not(wide: Path, packs_float32: bool):
    program = codec.parse((wide / "program.msgpack").read_bytes(), "x")
    names = {program.constants[number].name.partition(":")[0] for number, _ in packed_constants(program)}
    assert names == {"up.weight", "down.weight", "scale"}
    with aotair.load(wide) as model, torch.no_grad():
        assert len({id(one) for one in model._resident.packed.values()}) == (3 if packs_float32 else 0)
        held = sum(one.nbytes for one in {id(one): one for one in model._resident.packed.values()}.values())
        assert held == promised(model) and (held > 0) == packs_float32
        for rows in (1, 3, 4, 77):
            x = torch.randn(rows, 5, 192)
            torch.testing.assert_close(model(x), Wide(0)(x), atol=1e-5, rtol=1e-5)


def test_what_a_packed_product_makes_afresh_is_promised(wide: Path):
    program = codec.parse((wide / "program.msgpack").read_bytes(), "x")
    *_, most = program.entry_points[0].buckets
    fresh = {program.ops[one.op].name: (one.nbytes, one.calls) for one in most.fresh}
    assert fresh["aten::addmm.out"] == (500 * 256 * 4, 2) and fresh["aten::mm.out"] == (500 * 256 * 4, 3)


@pytest.mark.skipif(sys.platform != "linux", reason="pages are given back on Linux alone")
def test_the_pages_of_packed_weights_are_given_back_and_read_again(wide: Path, monkeypatch):
    monkeypatch.setattr(onednn, "_is_amd", lambda: True)
    with aotair.load(wide) as model:
        (number,) = [n for n, c in enumerate(model.program.constants) if c.name == "down.weight"]
        (other,) = [n for n, c in enumerate(model.program.constants) if c.name == "small.weight"]
        weight, small = model._resident.constants[number], model._resident.constants[other]
        assert resident(weight) < pages(weight)
        assert torch.equal(weight, Wide(0).down.weight) and torch.equal(small, Wide(0).small.weight)
        assert resident(weight) == pages(weight)


@pytest.mark.skipif(sys.platform != "linux", reason="pages are given back on Linux alone")
def test_the_pages_of_a_table_that_is_packed_too_are_read_again_where_a_call_needs_them(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(onednn, "_is_amd", lambda: True)
    model = torch.nn.Sequential(torch.nn.Embedding(20_000, 64), torch.nn.Linear(64, 20_000, bias=False))
    model[1].weight = model[0].weight
    ids = {"shape": [1, 32], "dtype": "int64", "range": [0, 20_000]}
    path = aotair.build(model=model, name="tied", out=tmp_path / "tied.aotair", inputs={"input": ids})
    with aotair.load(path) as loaded:
        (weight,) = loaded._resident.constants
        assert resident(weight) < pages(weight) / 2
        given = torch.randint(20_000, (1, 32))
        torch.testing.assert_close(loaded(given), model(given), rtol=1e-4, atol=1e-4)


def resident(tensor: torch.Tensor) -> int:
    """How many of the pages in which a tensor lies this process has mapped, by the system's own table of them."""
    page = mmap.PAGESIZE
    first, last = tensor.data_ptr() // page, -(-(tensor.data_ptr() + tensor.nbytes) // page)
    with open("/proc/self/pagemap", "rb") as stream:
        stream.seek(first * 8)
        entries = stream.read((last - first) * 8)
    return sum(entry >> 63 for entry in struct.unpack(f"{last - first}Q", entries))


def pages(tensor: torch.Tensor) -> int:
    page = mmap.PAGESIZE
    return -(-(tensor.data_ptr() + tensor.nbytes) // page) - tensor.data_ptr() // page


def test_without_packing_the_numbers_are_torchs_own(wide: Path):
    with aotair.load(wide, pack_weights=False) as model, torch.no_grad():
        assert torch.equal(model(WIDE), Wide(0)(WIDE))


def test_other_weights_of_float32_are_packed_at_the_same_addresses(wide: Path, tmp_path: Path, packs_float32: bool):
    with aotair.load(wide) as model:
        packed = model._resident.packed
        first, addresses = model(WIDE).clone(), {key: one.address for key, one in packed.items()}
        for seed in (1, 2):
            safetensors.torch.save_model(Wide(seed), str(tmp_path / "w.safetensors"))
            model.load_weights(tmp_path / "w.safetensors")
            with aotair.load(built_wide(tmp_path / f"{seed}.aotair", Wide(seed))) as fresh:
                assert torch.equal(model(WIDE), fresh(WIDE)) and not torch.equal(model(WIDE), first)
        assert {key: one.address for key, one in packed.items()} == addresses


X2, W2, B2, OUT2 = torch.ones(3, 8), torch.ones(5, 8), torch.ones(5), torch.empty(3, 5)
MM, ADDMM = torch.ops.aten.mm.out, torch.ops.aten.addmm.out


@pytest.mark.parametrize(
    ("op", "args", "kwargs"),
    [
        (MM, (X2, W2), {"out": OUT2}),  # not turned
        (MM, (X2, torch.ones(8, 5)), {"out": OUT2}),  # of another layout
        (MM, (X2, W2.t()), {}),
        (MM, (X2,), {"out": OUT2}),
        (MM, (B2, X2, W2.t()), {"out": OUT2}),
        (MM, (torch.ones(3, 16)[:, ::2], W2.t()), {"out": OUT2}),
        (MM, (torch.ones(3, 9), W2.t()), {"out": OUT2}),
        (MM, (torch.ones(2, 3, 8), W2.t()), {"out": OUT2}),
        (MM, (X2.double(), W2.t()), {"out": OUT2}),
        (ADDMM, (X2, W2.t()), {"out": OUT2}),
        (ADDMM, (torch.ones(1), X2, W2.t()), {"out": OUT2}),
        (ADDMM, (torch.ones(10)[::2], X2, W2.t()), {"out": OUT2}),
        (ADDMM, (B2, X2, W2.t()), {"out": OUT2, "alpha": 2}),
        (ADDMM, (3, X2, W2.t()), {"out": OUT2}),
    ],
)
def test_products_that_do_not_fit_a_packed_weight_are_refused(op, args, kwargs):
    packed = onednn.OnednnWeight(W2)
    assert packed.call(MM, (X2, W2.t()), {"out": OUT2}) and packed.call(ADDMM, (B2, X2, W2.t()), {"out": OUT2})
    assert packed.call(op, args, kwargs) is None


def test_a_row_that_is_not_finite_reaches_no_other(packer):
    torch.manual_seed(0)
    sizes = [
        (1, 5, 3),
        (17, 33, 8),
        (63, 129, 16),
        (200, 100, 33),
        (577, 64, 2),
        (32, 64, 3),
        (33, 128, 8),
        (63, 192, 16),
    ]
    if packer is onednn_product.LibraryWeight:  # the others would be padded by much
        if not onednn_product.has_kernels(torch.float32):
            pytest.skip("fast kernels of a library of oneDNN for float32: not for this processor")
        sizes = [one for one in sizes if onednn_product.takes((one[1], one[0]), torch.float32)]
        assert len(sizes) == 5
    for width, out, rows in sizes:
        weight, bias, x = torch.randn(out, width), torch.randn(out), torch.randn(rows, width)
        results = []
        for value in (None, float("nan"), float("inf")):
            given = x.clone()
            if value is not None:
                given[1, width // 2] = value
            results.append(torch.empty(rows, out))
            packer(weight).call(ADDMM, (bias, given, weight.t()), {"out": results[-1]})()
        assert all(torch.equal(results[0][[0, *range(2, rows)]], one[[0, *range(2, rows)]]) for one in results)
        assert not any(torch.isfinite(one[1]).any() for one in results[1:])


# ---- weights of four bits ------------------------------------------------------------------------------------------


def rounded(weight: torch.Tensor, group: int) -> torch.Tensor:
    """A weight as four bits hold it, from the definition: in groups, between the least and the greatest of which there
    are 15 steps, in bfloat16, which CPUs compute such products in."""
    groups = weight.float().view(len(weight), -1, group)
    least, greatest = groups.amin(2, keepdim=True), groups.amax(2, keepdim=True)
    scale = (greatest - least) / 15
    zero = (-0.5 - (least / 2 + greatest / 2) / scale).to(BF16).float()
    scale = scale.to(BF16).float()
    return (((groups / scale + zero).round().clamp(-8, 7) - zero) * scale).view(weight.shape)


class Small(TwoLayers):
    def quantised(self, x: torch.Tensor) -> torch.Tensor:
        """The same with the weights as four bits hold them, in float32."""
        hidden = torch.relu(x.float() @ rounded(self.up.weight, 32).t() + self.up.bias.float())
        return hidden @ rounded(self.down.weight, 32).t()


def in_four_bits(path: Path, model: Small) -> Path:
    x = {"shape": ["n", 3, 64], "dtype": str(model.up.weight.dtype).removeprefix("torch."), "pad": "any"}
    part = {"linear": "int4_weight_only", "group_size": 32}
    verify = {"atol": 0.02, "rtol": 0.02}
    return aotair.build(model=model, out=path, inputs={"x": x}, buckets={"n": [2, 40]}, verify=verify, quantize=part)


@pytest.mark.parametrize("dtype", [BF16, torch.float16])
def test_weights_of_four_bits_are_read_by_the_kernel_for_few_rows_and_made_floats_for_many(tmp_path: Path, dtype):
    model, many = Small(0, dtype), torch.linspace(-1, 1, 40 * 3 * 64).view(40, 3, 64).to(dtype)
    path = in_four_bits(tmp_path / "m.aotair", model)
    with aotair.load(path) as served, aotair.load(path, pack_weights=False) as needed:
        names = [{served.program.ops[served.program.instructions[n].op].name for n in bucket.code}
                 for bucket in served.program.entry_points[0].buckets]  # fmt: skip
        assert ["aten::_weight_int4pack_mm_for_cpu" in found for found in names] == [True, False]
        stored = {c.name: (c.dtype, c.shape) for c in served.program.constants}
        assert ("uint8", (96, 32)) in stored.values() and "up.weight" not in stored
        assert promised(served) == promised(needed) == 96 * 32 + 32 * 48
        for x in (many[:1], many[:2], many):
            with torch.no_grad():
                want = model.quantised(x)
            torch.testing.assert_close(served(x).float(), want, atol=0.02, rtol=0.02)
            assert torch.equal(served(x), needed(x))


@pytest.mark.parametrize("dtype", [BF16, long(torch.float16)])
def test_a_checkpoint_of_floats_is_rounded_and_packed_again(tmp_path: Path, dtype):
    x = torch.linspace(-1, 1, 2 * 3 * 64).view(2, 3, 64).to(dtype)
    with aotair.load(in_four_bits(tmp_path / "m.aotair", Small(0, dtype))) as model:
        addresses = [one._packed.data_ptr() for one in model._resident.packed.values()]
        for seed in (1, 2, 3):
            safetensors.torch.save_file(Small(seed, dtype).state_dict(), tmp_path / "w.safetensors")
            model.load_weights(tmp_path / "w.safetensors")
            with aotair.load(in_four_bits(tmp_path / f"{seed}.aotair", Small(seed, dtype))) as fresh:
                assert torch.equal(model(x), fresh(x))
        assert [one._packed.data_ptr() for one in model._resident.packed.values()] == addresses


@pytest.mark.parametrize("group", [32, 64, 128, 256])
@pytest.mark.parametrize("rows", [1, 3, 32, 33])
def test_groups_and_rows_beside_the_definition(group: int, rows: int):
    torch.manual_seed(group + rows)
    numbers = torch.randint(0, 16, (48, 512))
    factors = torch.rand(512 // group, 48, 2).to(BF16)
    x = torch.randn(rows, 512).to(BF16)
    weight = ((numbers.float() - 8).view(48, -1, group) * factors[..., 0].t().float().unsqueeze(2)
              + factors[..., 1].t().float().unsqueeze(2)).view(48, 512)  # fmt: skip
    stored = (numbers[:, 0::2] | numbers[:, 1::2] << 4).to(torch.uint8)
    op = torch.ops.aten._weight_int4pack_mm_for_cpu.default
    packed = int4.packed(stored)
    assert packed is not None
    call = packed.call(op, (x, stored, group, factors), {})
    want = x.double() @ weight.double().t()
    assert (call().double() - want).norm() < 0.01 * want.norm()
    assert (torch.ops.air.linear_int4(x, stored, group, factors).double() - want).norm() < 0.01 * want.norm()


@pytest.mark.parametrize(
    "change",
    [
        {"x": torch.ones(2, 66).to(BF16)},
        {"x": torch.ones(2, 64)},
        {"x": torch.ones(1, 2, 64).to(BF16)},
        {"x": torch.ones(2, 128).to(BF16)[:, ::2]},
        {"group": 31},
        {"group": 64.0},
        {"group": 128},
        {"factors": torch.ones(1, 32, 2).to(BF16)},
        {"factors": torch.ones(2, 32, 2)},
        {"factors": None},
    ],
)
def test_arguments_that_do_not_fit_a_weight_of_four_bits_are_refused(change: dict):
    packed = int4.packed(torch.ones(32, 32, dtype=torch.uint8))
    assert packed is not None
    right = {"x": torch.ones(2, 64).to(BF16), "group": 32, "factors": torch.ones(2, 32, 2).to(BF16)}
    for given, fits in ((right, True), (right | change, False)):
        call = packed.call(
            torch.ops.aten._weight_int4pack_mm_for_cpu.default, (given["x"], None, given["group"], given["factors"]), {}
        )
        assert (call is not None) == fits


@pytest.mark.parametrize("weight", [torch.ones(15, 32), torch.ones(16, 24), torch.ones(0, 32), torch.ones(16)])
def test_a_weight_that_the_kernel_does_not_take_is_none(weight: torch.Tensor):
    assert int4.packed(weight.to(torch.uint8)) is None and int4.packed(torch.ones(16, 32)) is None


# ---- hostile programs ----------------------------------------------------------------------------------------------


def number_of(program: Program) -> tuple[int, int]:
    """The first tensor of the first bucket that is a packed constant, and the instruction that reads it."""
    bucket = program.entry_points[0].buckets[0]
    tensor = next(n for n, item in enumerate(bucket.tensors) if item.space == Space.PACKED)
    code = [n for n in bucket.code if program.ops[program.instructions[n].op].name == "aten::linear"]
    return tensor, code[0]


def with_placement(program: Program, **changes) -> Program:
    entry = program.entry_points[0]
    bucket, (number, _) = entry.buckets[0], number_of(program)
    tensors = (*bucket.tensors[:number], replace(bucket.tensors[number], **changes), *bucket.tensors[number + 1 :])
    buckets = (replace(bucket, tensors=tensors), *entry.buckets[1:])
    return replace(program, entry_points=(replace(entry, buckets=buckets),))


def with_instruction(program: Program, change) -> Program:
    _, number = number_of(program)
    made = change(program, program.instructions[number])
    instructions = (*program.instructions[:number], made, *program.instructions[number + 1 :])
    return replace(program, instructions=instructions)


def other_op(program: Program, item):
    return replace(item, op=next(n for n, op in enumerate(program.ops) if op.name != "aten::linear"))


@pytest.mark.parametrize(
    "change",
    [
        lambda p: with_placement(p, offset=2),
        lambda p: with_placement(p, index=999),
        lambda p: with_placement(p, layout=0),
        lambda p: with_instruction(p, other_op),
        lambda p: with_instruction(p, lambda _, item: replace(item, form=int(Form.OUT))),
        lambda p: with_instruction(p, lambda _, item: replace(item, form=int(Form.EFFECT))),
        lambda p: with_instruction(p, lambda _, item: replace(item, args=(item.args[1], *item.args[1:]))),
        lambda p: with_instruction(p, lambda _, item: replace(item, args=(item.args[0], (item.args[1],)))),
        lambda p: with_instruction(p, lambda _, item: replace(item, kwargs=(("weight", item.args[1]),))),
        lambda p: with_instruction(p, lambda p, item: replace(item, outs=(number_of(p)[0],))),
    ],
)
def test_a_packed_weight_elsewhere_is_refused(path: Path, change):
    program = codec.parse((path / "program.msgpack").read_bytes(), "x")
    check_program(program, "x")
    with pytest.raises(MalformedError):
        check_program(change(program), "x")


@packing
def test_an_instruction_without_a_place_for_its_result_is_refused(path: Path, tmp_path: Path):
    shutil.copytree(path, tmp_path / "m.aotair")
    file = tmp_path / "m.aotair" / "program.msgpack"
    program = codec.parse(file.read_bytes(), "x")
    file.write_bytes(codec.dump(with_instruction(program, lambda _, item: replace(item, outs=()))))
    with pytest.raises(AotairError):
        aotair.load(tmp_path / "m.aotair")


@packing
@pytest.mark.parametrize("place", [0, 2])
def test_arguments_that_do_not_fit_a_packed_weight_are_refused(path: Path, place: int):
    """oneDNN's kernel would read beyond them."""
    with aotair.load(path) as model:
        program, bucket = model.program, model.program.entry_points[0].buckets[0]
        item = program.instructions[number_of(program)[1]]
        wrong = item.outs[0]  # (2, 3, 96), where x is (2, 3, 64) and the bias (96,)
        args = tuple(replace(arg, index=wrong) if at == place else arg for at, arg in enumerate(item.args))
        changed = with_instruction(program, lambda _, item: replace(item, args=args))
        graphs = model.entry_points["forward"].graphs
        here = graphs.resident
        memory = Memory(graphs.pools[0].space, here.constants, here.states, {}, {}, here.packed)
        with pytest.raises(MalformedError, match="do not fit"):
            bind(changed, bucket, memory, graphs.parts.ops, open_device("cpu").torch_device, "x")
