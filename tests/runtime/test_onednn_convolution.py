"""Convolutions in channels-last with packed weights: the numbers of their definition, in their places."""

import functools
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import aotair
from aotair_runtime.devices import onednn_convolution, onednn_library
from aotair_runtime.devices.onednn_convolution import (
    Convolution,
    LibraryConvolutionWeight,
    TorchConvolutionWeight,
    packed_bytes,
    shape_of,
)
from aotair_runtime.errors import AotairError
from aotair_runtime.format import codec
from aotair_runtime.format.packed import packed_constants
from aotair_runtime.memory.promise import Terms, promise

CONVOLUTION, LINEAR = torch.ops.aten.convolution.default, torch.ops.aten.linear.default
BF16, DENSE = torch.bfloat16, torch.channels_last
there = onednn_convolution._library(torch.float32) is not None
WHY = f"convolutions of a library of oneDNN: {onednn_library.why_none() or 'not for this processor'}"
with_library = pytest.mark.skipif(not there, reason=WHY)
DTYPES = [kind for kind in (torch.float32, BF16) if onednn_convolution._library(kind) is not None] or [torch.float32]


def near(kind: torch.dtype) -> dict[str, float]:
    return {"atol": 2e-4, "rtol": 1e-4} if kind == torch.float32 else {"atol": 0.15, "rtol": 0.03}


def image(*shape: int, kind: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return made.to(kind).contiguous(memory_format=DENSE)


@pytest.fixture(params=["library", "torch"])
def packer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type:
    if request.param == "torch":
        monkeypatch.setattr(onednn_convolution, "library", lambda: None)
        return TorchConvolutionWeight
    if not there:
        pytest.skip(WHY)
    return LibraryConvolutionWeight


# ---- one convolution -------------------------------------------------------------------------------------------------


@with_library
@settings(max_examples=120, deadline=None)
@given(
    batch=st.integers(1, 3),
    size=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    groups=st.sampled_from([1, 1, 2, 8]),
    channels=st.tuples(st.integers(1, 40), st.integers(1, 70)),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    steps=st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(1, 2)),
    bias=st.booleans(),
    kind=st.sampled_from(DTYPES),
)
def test_a_convolution_is_that_of_its_definition(batch, size, groups, channels, kernel, steps, bias, kind):
    read, written = (groups * one for one in channels)
    x, weight = image(batch, read, *size, kind=kind), torch.randn(written, channels[0], *kernel).to(kind)
    shift = torch.randn(written).to(kind) if bias else None
    stride, padding, dilation = ([one, one] for one in steps)
    args = (x, weight, shift, stride, padding, dilation, False, [0, 0], groups)
    if shape_of(x.shape, weight.shape, args[3:], kind) is None:
        return  # the image is smaller than the kernel
    want = CONVOLUTION(*(one.double() if isinstance(one, torch.Tensor) else one for one in args))
    whole = torch.full((want.shape[0] + 2, *want.shape[1:]), 7.0).to(kind).contiguous(memory_format=DENSE)
    place = whole[1:-1]
    packed = onednn_convolution.packed(weight)
    assert isinstance(packed, LibraryConvolutionWeight)
    call = packed.into(CONVOLUTION, args, {}, place)
    if call is None:  # the library has no fast kernel
        place.copy_(packed.call(CONVOLUTION, args, {})())
    else:
        assert isinstance(call, Convolution)
        call()
        before = place.clone()
        call()
        assert torch.equal(place, before)
    torch.testing.assert_close(place.double(), want, **near(kind))
    assert (whole[0] == 7).all() and (whole[-1] == 7).all(), "it writes beside its place"


X, W, B = image(2, 16, 9, 9), torch.randn(32, 16, 3, 3), torch.randn(32)
STEPS = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
OUT = image(2, 32, 9, 9)


@pytest.mark.parametrize(
    "args",
    [
        (X, W, B),
        (X, W, B, *STEPS, 1),
        (3, W, B, *STEPS),
        (X, 3, B, *STEPS),
        (X, W, 3, *STEPS),
        (X.double(), W, B, *STEPS),
        (X.to("meta"), W, B, *STEPS),
        (X, W.double(), B, *STEPS),
        (X, W.transpose(2, 3), B, *STEPS),  # in another order
        (X, W[:16], B, *STEPS),  # a part of it
        (X, W, B[:31], *STEPS),
        (X, W, torch.randn(64)[::2], *STEPS),
        (X, W, B.to(BF16), *STEPS),
        (X[:, :8], W, B, *STEPS),  # of other channels
        (X[0], W, B, *STEPS),
        (X, W, B, [0, 1], *STEPS[1:]),
        (X, W, B, [1, 1], [-1, 1], *STEPS[2:]),
        (X, W, B, [1, 1], [1 << 62, 1], *STEPS[2:]),
        (X, W, B, [1 << 70, 1 << 70], *STEPS[1:]),
        (X, W, B, [1, 1], [1, 1], [9, 9], *STEPS[3:]),  # larger than the image
        (X, W, B, [1, 1, 1], *STEPS[1:]),
        (X, W, B, [], *STEPS[1:]),
        (X, W, B, [1.0, 1.0], *STEPS[1:]),
        (X, W, B, *STEPS[:3], True, *STEPS[4:]),
        (X, W, B, *STEPS[:5], 2),
        (X, W, B, *STEPS[:5], 0),
    ],
)
def test_what_does_not_fit_the_weight_is_refused(packer: type, args: tuple[object, ...]):
    packed = onednn_convolution.packed(W)
    assert isinstance(packed, packer)
    assert packed.call(CONVOLUTION, (X, W, B, *STEPS), {}) is not None
    assert packed.call(CONVOLUTION, args, {}) is None and packed.into(CONVOLUTION, args, {}, OUT) is None
    assert packed.call(CONVOLUTION, (X, W, B, *STEPS), {"other": 1}) is None
    assert packed.call(LINEAR, (X, W, B), {}) is None


@with_library
def test_images_that_lie_otherwise_are_convolved_by_the_op_itself():
    packed, plain = onednn_convolution.packed(W), X.contiguous()
    assert packed.into(CONVOLUTION, (X, W, B, *STEPS), {}, OUT) is not None
    assert packed.into(CONVOLUTION, (plain, W, B, *STEPS), {}, OUT) is None
    for out in (OUT.contiguous(), OUT[:1], image(2, 32, 9, 10), OUT.double(), OUT.to("meta")):
        assert packed.into(CONVOLUTION, (X, W, B, *STEPS), {}, out) is None
    found = packed.call(CONVOLUTION, (plain, W, B, *STEPS), {})()
    torch.testing.assert_close(found, torch.conv2d(plain, W, B, padding=1))


@with_library
def test_what_lies_over_what_is_read_is_no_place():
    both, weight = image(3, 32, 9, 9), torch.randn(32, 32, 3, 3)
    packed = onednn_convolution.packed(weight)
    for x, out in ((both[:2], both[:2]), (both[:2], both[1:])):
        assert packed.into(CONVOLUTION, (x, weight, B, *STEPS), {}, out) is None
    bias = both[0].permute(1, 2, 0).reshape(-1)[:32]
    assert packed.into(CONVOLUTION, (both[1:], weight, both.permute(0, 2, 3, 1)[0, 0, 0], *STEPS), {}, both[:2]) is None
    assert packed.into(CONVOLUTION, (both[1:], weight, bias.clone(), *STEPS), {}, OUT) is not None


def test_other_values_lie_at_the_same_address(packer: type):
    packed, other, out = onednn_convolution.packed(W), torch.randn_like(W), OUT.clone()
    args = (X, W, B, *STEPS)
    call = packed.into(CONVOLUTION, args, {}, out) or packed.call(CONVOLUTION, args, {})
    before = packed.nbytes
    packed.fill(other)
    found = call()
    torch.testing.assert_close(out if found is None else found, torch.conv2d(X, other, B, padding=1), **near(W.dtype))
    assert packed.nbytes == before == packed_bytes([shape_of(X.shape, W.shape, STEPS, W.dtype)])


@with_library
def test_a_weight_is_packed_once_for_all_sizes_that_want_it_alike_and_again_for_others():
    weight, steps = torch.randn(512, 128, 1, 1), ([1, 1], [0, 0], *STEPS[2:])
    packed, shapes = onednn_convolution.packed(weight), []
    for size in (7, 14, 56, 112, 14):
        x, out = image(1, 128, size, size), image(1, 512, size, size)
        call = packed.into(CONVOLUTION, (x, weight, None, *steps), {}, out)
        assert isinstance(call, Convolution)
        call()
        torch.testing.assert_close(out, torch.conv2d(x, weight), **near(weight.dtype))
        shapes.append(shape_of(x.shape, weight.shape, steps, weight.dtype))
    assert packed.nbytes == packed_bytes(shapes)
    assert packed.nbytes < 4 * weight.nbytes


@with_library
def test_a_convolution_runs_with_as_many_threads_as_there_are():
    before, out = torch.get_num_threads(), OUT.clone()
    call = onednn_convolution.packed(W).into(CONVOLUTION, (X, W, B, *STEPS), {}, out)
    try:
        for threads in (1, 3, 2):
            torch.set_num_threads(threads)
            out.zero_()
            call()
            torch.testing.assert_close(out, torch.conv2d(X, W, B, padding=1), **near(W.dtype))
    finally:
        torch.set_num_threads(before)


# ---- what follows it -------------------------------------------------------------------------------------------------


def _after(out: torch.Tensor, other: torch.Tensor) -> dict[str, functools.partial]:
    aten = torch.ops.aten
    return {
        "tanh": functools.partial(aten.tanh_.default, out),
        "gelu": functools.partial(aten.gelu_.default, out),
        "silu of rows": functools.partial(aten.silu_.default, out.permute(0, 2, 3, 1)),
        "add": functools.partial(aten.add_.Tensor, out, other),
        "mul of rows": functools.partial(aten.mul_.Tensor, out.permute(0, 2, 3, 1), other.permute(0, 2, 3, 1)),
    }


@with_library
@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.sampled_from(sorted(_after(OUT, OUT))), min_size=1, max_size=4),
    kernel=st.sampled_from([1, 3]),
    depthwise=st.booleans(),
    kind=st.sampled_from(DTYPES),
)
def test_a_convolution_does_what_follows_it_as_well(steps, kernel, depthwise, kind):
    x, other = image(2, 32, 9, 9, kind=kind), image(2, 32, 9, 9, kind=kind, seed=1)
    weight = (torch.randn(32, 1 if depthwise else 32, kernel, kernel) / 4).to(kind)
    padding = [kernel // 2] * 2
    args = (x, weight, None, [1, 1], padding, [1, 1], False, [0, 0], 32 if depthwise else 1)
    one, both = image(2, 32, 9, 9, kind=kind), image(2, 32, 9, 9, kind=kind)
    packed = onednn_convolution.packed(weight)
    single, joined = (packed.into(CONVOLUTION, args, {}, out) for out in (one, both))
    apart = [single]
    for step in steps:
        apart.append(_after(one, other)[step])
        joined = joined.then(_after(both, other)[step])
        assert isinstance(joined, Convolution), step
    for call in apart:
        call()
    joined()
    torch.testing.assert_close(both.float(), one.float(), **near(kind))


@with_library
@pytest.mark.parametrize("kind", DTYPES)
def test_a_convolution_applies_a_factor_and_a_term_for_each_channel_to_its_sums(kind):
    aten, air = torch.ops.aten, torch.ops.air
    x, other, weight = (
        image(2, 32, 9, 9, kind=kind),
        image(2, 48, 9, 9, kind=kind, seed=1),
        torch.randn(48, 32, 1, 1) / 4,
    )
    weight, bias, factor, term = weight.to(kind), torch.randn(48).to(kind), torch.randn(48), torch.randn(48)
    out = image(2, 48, 9, 9, kind=kind)
    call = onednn_convolution.packed(weight).into(
        CONVOLUTION, (x, weight, bias, *STEPS[:1], [0, 0], *STEPS[2:]), {}, out
    )
    joined = call.then(functools.partial(air.channel_affine_.default, out, factor, term))
    joined = joined.then(functools.partial(aten.add_.Tensor, out, other))
    assert isinstance(joined, Convolution)
    joined()
    scaled = torch.conv2d(x.double(), weight.double(), bias.double()) * factor.view(-1, 1, 1) + term.view(-1, 1, 1)
    torch.testing.assert_close(out.double(), scaled + other.double(), **near(kind))
    for wrong in (
        (out, factor[:47], term),
        (out, factor, term.double()),
        (out[:1], factor, term),
        (other, factor, term),
    ):
        assert call.then(functools.partial(air.channel_affine_.default, *wrong)) is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), -3e38])
def test_what_is_not_finite_is_what_it_is_in_the_original(tmp_path: Path, value: float):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 1), torch.nn.ReLU())
    model[0].weight.data.abs_().mul_(9)
    path = aotair.build(
        model=model, name="m", out=tmp_path / "m", inputs={"input": {"shape": [1, 8, 3, 3], "dtype": "float32"}}
    )
    x = torch.randn(1, 8, 3, 3)
    x[0, :, 1, 1] = value
    with aotair.load(path) as served, torch.no_grad():
        torch.testing.assert_close(served(x), model(x), equal_nan=True, atol=1e-4, rtol=1e-4)


# ---- in a model ------------------------------------------------------------------------------------------------------


class Images(torch.nn.Module):
    """Convolutions of images and of sequences, with norms, residuals, groups and pools between them."""

    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.stem, self.norm = torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.BatchNorm2d(32)
        self.deep = torch.nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.wide, self.head = torch.nn.Conv2d(32, 64, 1, bias=False), torch.nn.Linear(64, 10)
        self.row = torch.nn.Conv1d(64, 32, 3, stride=2, padding=1)
        self.norm.running_mean.normal_()
        self.eval()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = torch.relu(self.norm(self.stem(x)))
        wide = torch.relu(self.wide(first + self.deep(first)))
        row = torch.nn.functional.gelu(self.row(wide.flatten(2)))
        return self.head(torch.nn.functional.max_pool2d(wide, 2).mean((2, 3))), row


def built(path: Path, seed: int) -> Path:
    x = {"shape": ["n", 3, 12, 12], "dtype": "float32", "pad": "any"}
    return aotair.build(model=Images(seed), out=path, inputs={"x": x}, buckets={"n": [1, 4]})


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("images") / "images.aotair", 0)


@pytest.mark.parametrize("pack_weights", [True, False])
def test_a_model_gives_what_the_original_does_wherever_it_runs(packer: type, images: Path, pack_weights: bool):
    model, x = Images(0), torch.randn(3, 3, 12, 12)
    with aotair.load(images, pack_weights=pack_weights) as served, torch.no_grad():
        for batch in (1, 2, 3):
            for got, want in zip(served(x[:batch]), model(x[:batch]), strict=True):
                torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
                assert got.is_contiguous()
        packed = served._resident.by_number.values()
        assert all(isinstance(one, packer) for one in packed if "Convolution" in type(one).__name__)
        assert sum("Convolution" in type(one).__name__ for one in packed) == (4 if pack_weights else 0)


def test_what_packed_weights_take_is_promised_to_the_byte(packer: type, images: Path):
    with aotair.load(images) as served:
        taken = sum(one.nbytes for one in served._resident.by_number.values())
        (promised,) = [one.nbytes for one in served.promise.items if one.name == "weights packed for the processor"]
        assert taken == promised > 0


def test_weights_of_another_checkpoint_are_those_of_a_fresh_build(packer: type, images: Path, tmp_path: Path):
    x, fresh = torch.randn(2, 3, 12, 12), built(tmp_path / "other.aotair", 1)
    with aotair.load(images) as served, aotair.load(fresh) as other:
        served.load_weights(fresh)
        for got, want in zip(served(x), other(x), strict=True):
            assert torch.equal(got, want)


def test_a_norm_in_bfloat16_is_what_convolutions_do_to_their_sums(packer: type, tmp_path: Path):
    def made(name: str, seed: int) -> Path:
        x = {"shape": ["n", 3, 12, 12], "dtype": "bfloat16", "pad": "any"}
        model = Images(seed).bfloat16()
        return aotair.build(model=model, out=tmp_path / name, inputs={"x": x}, buckets={"n": [1, 4]})

    x, first, second = torch.randn(2, 3, 12, 12).bfloat16(), made("first", 0), made("second", 1)
    with aotair.load(first, enable_output_clone=True) as served, aotair.load(second) as other, torch.no_grad():
        assert "air::channel_affine_" in {op.name for op in served.program.ops}
        for got, want in zip(served(x), Images(0)(x.float()), strict=True):
            torch.testing.assert_close(got.float(), want, atol=0.1, rtol=0.05)
        served.load_weights(second)
        for got, want in zip(served(x), other(x), strict=True):
            assert torch.equal(got, want)


def test_weights_are_read_packed_by_convolutions(images: Path):
    with aotair.load(images) as served:
        names = {served.program.constants[n].name: op for n, op in packed_constants(served.program)}
    assert list(names.values()).count("aten::convolution") == 4


@pytest.mark.parametrize("layout", [True, False])
@pytest.mark.parametrize(("channels", "size"), [(1, 9), (1, 1), (8, 1), (3, 2)])
def test_images_that_are_contiguous_in_any_layout_take_what_is_promised(tmp_path: Path, channels, size, layout):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(channels, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 1, 1))
    config = aotair.CompilerConfig()
    config.experimental_config.channels_last = layout
    x = {"shape": ["n", channels, size, 1], "dtype": "float32", "pad": "any"}
    out, buckets = tmp_path / "m.aotair", {"n": [1, 4]}
    aotair.build(model=model, name="m", out=out, inputs={"input": x}, buckets=buckets, config=config)
    given_to = torch.randn(3, channels, size, 1)
    with aotair.load(out) as served, torch.no_grad():
        torch.testing.assert_close(served(given_to), model(given_to), atol=1e-5, rtol=1e-5)
        taken = sum(one.nbytes for one in served._resident.by_number.values())
        assert [one.nbytes for one in served.promise.items if one.name == "weights packed for the processor"] == [taken]


class Written(torch.nn.Module):
    """A convolution whose weight each call writes, beside one with a constant of its shape; so a linear layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.plain, self.flat = torch.nn.Conv2d(8, 8, 3, padding=1, bias=False), torch.nn.Linear(256, 256, bias=False)
        self.register_buffer("w", torch.randn(8, 8, 3, 3) / 8)
        self.register_buffer("v", torch.randn(256, 256) / 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.conv2d(self.plain(x), self.w, padding=1)
        flat = torch.nn.functional.linear(self.flat(y.flatten(2)), self.v)
        self.w.mul_(0.5)
        self.v.mul_(0.5)
        return flat


def test_weights_that_calls_write_are_read_as_they_are(packer: type, tmp_path: Path):
    x = {"shape": [1, 8, 16, 16], "dtype": "float32"}
    path = aotair.build(model=Written(), name="m", out=tmp_path / "m.aotair", inputs={"x": x})
    model = Written()
    with aotair.load(path) as served, torch.no_grad():
        for _ in range(3):
            given_to = torch.randn(1, 8, 16, 16)
            torch.testing.assert_close(served(given_to), model(given_to), atol=1e-4, rtol=1e-4)


ODD = {
    "smaller than the kernel reaches": ((9, 1), torch.nn.Conv2d(8, 17, (1, 3), (1, 3), (1, 2), (2, 1))),
    "padding beyond the kernel": ((9, 1), torch.nn.Conv2d(8, 32, 1, (1, 2), (2, 1), (1, 2))),
    "two for each channel": ((9, 3), torch.nn.Conv2d(8, 16, (1, 3), (1, 3), 0, (2, 1), 8)),
    "transposed": ((9, 3), torch.nn.ConvTranspose2d(8, 16, 3, 2)),
}


@pytest.mark.parametrize("pack_weights", [True, False])
@pytest.mark.parametrize("kind", ODD)
def test_what_torchs_kernels_for_the_layout_are_wrong_for_works_on_a_copy(tmp_path: Path, kind, pack_weights):
    size, odd = ODD[kind]
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 1), odd, torch.nn.GELU())
    x = {"shape": [3, 3, *size], "dtype": "float32"}
    path = aotair.build(model=model, name="m", out=tmp_path / "m.aotair", inputs={"input": x})
    given_to = torch.randn(3, 3, *size)
    with aotair.load(path, pack_weights=pack_weights) as served, torch.no_grad():
        torch.testing.assert_close(served(given_to), model(given_to), atol=1e-5, rtol=1e-5)


def test_weights_of_sequences_with_another_dimension_put_in_stay_as_they_are(tmp_path: Path):
    class Column(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.w = torch.nn.Parameter(torch.randn(16, 8, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.conv2d(x, self.w.unsqueeze(3), padding=(1, 0))

    x = {"shape": [1, 8, 9, 7], "dtype": "float32"}
    path = aotair.build(model=Column(), name="m", out=tmp_path / "m.aotair", inputs={"x": x})
    given_to = torch.randn(1, 8, 9, 7)
    with aotair.load(path) as served, torch.no_grad():
        torch.testing.assert_close(served(given_to), Column()(given_to), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("image", [3, (), None])
def test_a_convolution_of_no_tensor_is_refused(images: Path, tmp_path: Path, image: object):
    """By an error of ours: what packed weights take is worked out of such calls before they are checked."""
    shutil.copytree(images, tmp_path / "m.aotair")
    file = tmp_path / "m.aotair" / "program.msgpack"
    program = codec.parse(file.read_bytes(), "x")
    ops = [op.name for op in program.ops]
    wrong = tuple(
        replace(item, args=(image, *item.args[1:])) if ops[item.op] == "aten::convolution" else item
        for item in program.instructions
    )
    file.write_bytes(codec.dump(replace(program, instructions=wrong)))
    promise(codec.parse(file.read_bytes(), "x"), Terms("cpu"))
    with pytest.raises(AotairError):
        aotair.load(tmp_path / "m.aotair")
