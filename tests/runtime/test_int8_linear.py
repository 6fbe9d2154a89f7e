"""`air::dynamic_quant` and `air::quant_matmul` on the CPU: numbers of their definition, by torch and by a library of
oneDNN bit for bit; and what they refuse."""

import functools

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import aotair
from aotair_runtime.capture import bind
from aotair_runtime.devices import int8_linear, onednn_int8, onednn_library
from aotair_runtime.devices.onednn_int8 import Int8Weight, Product, Rounding, packed_bytes, rounding
from aotair_runtime.format.schema import Space
from aotair_runtime.steps import join

QUANTISE, MULTIPLY = torch.ops.air.dynamic_quant, torch.ops.air.quant_matmul
FLOATS = [torch.float32, torch.bfloat16, torch.float16]
BY_LIBRARY = pytest.mark.skipif(
    not onednn_int8.has_kernels(),
    reason=f"exact kernels of a library of oneDNN: {onednn_library.why_none() or 'not for this processor'}",
)


def whole(*shape: int) -> torch.Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8)


def spread(rows: int, width: int, kind: torch.dtype) -> torch.Tensor:
    """Rows of very different sizes, one of them zero."""
    made = torch.randn(rows, width) * 10.0 ** torch.randint(-4, 4, (rows, 1))
    made[rows // 2] *= rows == 1
    return made.to(kind)


# ---- definition ------------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(rows=st.integers(1, 40), width=st.integers(1, 70) | st.just(1500), kind=st.sampled_from(FLOATS))
def test_rows_come_back_within_half_a_step(rows: int, width: int, kind: torch.dtype):
    torch.manual_seed(rows * width)
    x = spread(rows, width, kind)
    tokens, scale = QUANTISE(x)
    assert tokens.dtype == torch.int8 and scale.dtype == torch.float32 and tuple(scale.shape) == (rows, 1)
    greatest = x.double().abs().amax(1, keepdim=True)
    torch.testing.assert_close(scale.double(), greatest / 127, rtol=1e-6, atol=2e-38)
    assert ((tokens.double() * scale.double() - x.double()).abs() <= 0.50003 * scale.double()).all()
    assert (tokens.abs().amax(1) == torch.where(greatest[:, 0] > 0, 127, 0)).all(), "all of int8 is used"


@settings(max_examples=80, deadline=None)
@given(
    rows=st.integers(0, 40),
    width=st.sampled_from([1, 2, 7, 64, 300]),
    out=st.integers(1, 70),
    by_token=st.booleans(),
    bias=st.booleans(),
    kind=st.sampled_from(FLOATS),
)
def test_a_product_is_that_of_its_definition(rows, width, out, by_token, bias, kind):
    torch.manual_seed(rows + width + out)
    x, weight, scale = whole(rows, width), whole(out, width), torch.rand(out) / 1e3
    tokens, shift = torch.rand(rows, 1) if by_token else None, torch.randn(out) if bias else None
    want = x.double() @ weight.double().t() * scale.double()
    want = want * (1 if tokens is None else tokens.double()) + (0 if shift is None else shift.double())
    got = MULTIPLY(x, weight, scale, tokens, shift, kind)
    assert got.dtype == kind
    torch.testing.assert_close(got.double(), want, rtol=2 * torch.finfo(kind).eps, atol=1e-4)
    turned = torch.full((out, rows), 7.0, dtype=kind).t()
    assert MULTIPLY.out(x, weight, scale, tokens, shift, kind, out=turned) is turned and torch.equal(turned, got)


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_poison_stays_in_its_row_and_is_seen(kind: torch.dtype, poison: float):
    x, weight, scale = torch.randn(3, 64).to(kind), whole(64, 64), torch.ones(64)
    clean = MULTIPLY(*(QUANTISE(x)[:1]), weight, scale, QUANTISE(x)[1], None, kind)
    x[1, 3] = poison
    tokens, by_token = QUANTISE(x)
    got = MULTIPLY(tokens, weight, scale, by_token, None, kind)
    assert got[1].isnan().all() and torch.equal(got[[0, 2]], clean[[0, 2]])
    if onednn_int8.has_kernels() and kind != torch.float16:
        out = torch.empty(3, 64, dtype=kind)
        rounding((x,), {"tokens": tokens, "scale": by_token})()
        Int8Weight(weight).call(MULTIPLY.out, (tokens, weight, scale, by_token, None, kind), {"out": out})()
        assert out[1].isnan().all() and torch.equal(out[[0, 2]], clean[[0, 2]])


def test_a_large_result_is_made_in_parts(monkeypatch):
    given_to = whole(7, 30), whole(9, 30), torch.rand(9), torch.rand(7, 1), torch.rand(9), torch.float32
    want, x = MULTIPLY(*given_to), spread(7, 30, torch.float32)
    rounded = QUANTISE(x)
    for most in (1, 9, 20, 27):
        monkeypatch.setattr(int8_linear, "_AT_A_TIME", most)
        assert torch.equal(MULTIPLY(*given_to), want)
        assert all(map(torch.equal, QUANTISE(x), rounded))


def test_the_smallest_numbers_do_not_wrap():
    for value in (2e-43, 1e-39, torch.finfo(torch.float32).tiny, 3e38):
        tokens, scale = QUANTISE(torch.tensor([[value, -value, 0.0]]))
        assert tokens[0, 0] >= 0 and tokens[0, 1] == -tokens[0, 0] and tokens[0, 2] == 0 and scale.isfinite().all()


X, W, S, T, B = whole(3, 4), whole(5, 4), torch.ones(5), torch.ones(3, 1), torch.ones(5)


@pytest.mark.parametrize(
    "given_to",
    [
        (X.int(), W, S, T, B),
        (X, W.float(), S, T, B),
        (X[0], W, S, T, B),
        (X, whole(5, 3), S, T, B),
        (X[:, :0], W[:, :0], S, T, B),
        (X, W, S.double(), T, B),
        (X, W, torch.ones(1), T, B),
        (X, W, torch.ones(5, 1), T, B),
        (X, W, S, torch.ones(3), B),
        (X, W, S, torch.ones(1, 1), B),
        (X, W, S, T.half(), B),
        (X, W, S, T, torch.ones(3)),
    ],
)
def test_arguments_that_do_not_fit_are_refused(given_to):
    with pytest.raises(ValueError, match="quant_matmul takes int8 x"):
        MULTIPLY(*given_to, torch.float32)
    with pytest.raises(ValueError, match="quant_matmul takes int8 x"):
        MULTIPLY(*(one.to("meta") for one in given_to), torch.float32)


def test_results_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="makes floats"):
        MULTIPLY(X, W, S, T, B, torch.int32)
    for out in (torch.empty(5, 3), torch.empty(3, 5).half()):
        with pytest.raises(ValueError, match=r"quant_matmul makes torch\.float32"):
            MULTIPLY.out(X, W, S, T, B, torch.float32, out=out)
    for x in (torch.ones(3, dtype=torch.float32), X, torch.ones(3, 0)):
        with pytest.raises(ValueError, match="dynamic_quant takes floats"):
            QUANTISE(x)
    for tokens, scale in ((X.int(), T), (X, T[:2]), (X[:, :3], T), (X, T.half())):
        with pytest.raises(ValueError, match="dynamic_quant makes"):
            QUANTISE.out(torch.ones(3, 4), tokens=tokens, scale=scale)


# ---- by the library --------------------------------------------------------------------------------------------------


@BY_LIBRARY
@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 70),
    width=st.integers(1, 300),
    out=st.integers(1, 6).map(lambda blocks: 64 * blocks) | st.integers(100, 300),
    by_token=st.booleans(),
    bias=st.booleans(),
    kind=st.sampled_from(FLOATS[:2]),
)
def test_the_library_gives_the_same_bits_and_writes_nothing_else(rows, width, out, by_token, bias, kind):
    torch.manual_seed(rows * width + out)
    x, weight = spread(rows, width, kind), whole(out, width)
    memory, scales = torch.full((rows + 2, width), 99, dtype=torch.int8), torch.full((rows + 2, 1), 99.0)
    call = rounding((x,), {"tokens": memory[1:-1], "scale": scales[1:-1]})
    assert isinstance(call, Rounding)
    call()
    tokens, scale = QUANTISE(x)
    assert torch.equal(memory[1:-1], tokens) and torch.equal(scales[1:-1], scale)
    assert (memory[[0, -1]] == 99).all() and (scales[[0, -1]] == 99).all()
    if not packed_bytes(weight.shape):
        return
    factors = torch.rand(out) / 1e3, scale if by_token else None, torch.randn(out) if bias else None
    place = torch.full((rows + 2, out), 7.0, dtype=kind)
    made = Int8Weight(weight).call(MULTIPLY.out, (tokens, weight, *factors, kind), {"out": place[1:-1]})
    assert isinstance(made, Product)
    made()
    assert torch.equal(place[1:-1], MULTIPLY(tokens, weight, *factors, kind)) and (place[[0, -1]] == 7).all()


@BY_LIBRARY
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_what_follows_is_done_on_the_way_for_any_number_of_threads(threads: int):
    aten, before = torch.ops.aten, torch.get_num_threads()
    x, weight, scale, by_token = whole(9, 128), whole(192, 128), torch.rand(192) / 1e3, torch.rand(9, 1)
    place, other = torch.empty(9, 192), torch.randn(9, 192)
    given_to = (x, weight, scale, by_token, None, torch.float32)
    call = Int8Weight(weight).call(MULTIPLY.out, given_to, {"out": place})
    for follower in (
        functools.partial(aten.gelu_.default, place.view(3, 3, 192)),
        functools.partial(aten.add_.Tensor, place, other),
    ):
        call = call.then(follower)
        assert isinstance(call, Product)
    want = torch.nn.functional.gelu(MULTIPLY(*given_to)) + other
    try:
        torch.set_num_threads(threads)
        call()
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(place, want, atol=1e-5, rtol=1e-5)


@BY_LIBRARY
def test_calls_that_the_kernel_does_not_take_are_made_by_the_op():
    weight, packed = whole(64, 64), Int8Weight(whole(64, 64))
    packed.fill(weight)
    x, scale, by_token = whole(5, 64), torch.rand(64), torch.rand(5, 1)
    cases = [
        (x, scale, by_token, torch.empty(64, 5).t()),
        (x.t().contiguous().t(), scale, by_token, torch.empty(5, 64)),
        (x, torch.rand(128)[::2], by_token, torch.empty(5, 64)),
        (x, scale, torch.rand(10, 1)[::2], torch.empty(5, 64)),
        (x, scale, by_token, torch.empty(5, 64, dtype=torch.float16)),
    ]
    for tokens, factors, rows, out in cases:
        given_to = (tokens, weight, factors, rows, None, out.dtype)
        call = packed.call(MULTIPLY.out, given_to, {"out": out})
        assert not isinstance(call, Product)
        call()
        assert torch.equal(out, MULTIPLY(*given_to))
    memory = torch.zeros(64 * 64 * 4, dtype=torch.uint8)
    over = memory[: 5 * 64].view(torch.int8).view(5, 64), memory[: 5 * 64 * 4].view(torch.float32).view(5, 64)
    made = packed.call(MULTIPLY.out, (over[0], weight, scale, by_token, None, torch.float32), {"out": over[1]})
    assert not isinstance(made, Product), "it would write over what it reads"
    with pytest.raises(ValueError, match="not a weight of"):
        packed.fill(whole(64, 32))
    for wrong in (weight.float(), whole(64), whole(2, 2)):
        with pytest.raises(ValueError, match="no packed form"):
            Int8Weight(wrong)


def test_without_a_library_nothing_is_packed(monkeypatch):
    monkeypatch.setattr(onednn_int8, "library", lambda: None)
    assert not onednn_int8.has_kernels() and not packed_bytes((64, 64))
    x = torch.randn(3, 4)
    assert rounding((x,), {"tokens": whole(3, 4), "scale": torch.empty(3, 1)}) is None


# ---- in an artifact --------------------------------------------------------------------------------------------------


class Attended(torch.nn.Module):
    """Three layers over one input, and one over what they make."""

    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.q, self.k, self.v, self.o = (torch.nn.Linear(128, 128) for _ in range(4))

    def forward(self, x):
        return x + self.o(torch.nn.functional.gelu(self.q(x) * self.k(x) + self.v(x)))


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    return aotair.build(
        model=Attended(0).eval(),
        name="attended",
        inputs={"x": {"shape": ["n", 128], "dtype": "float32"}},
        buckets={"n": [4, 16]},
        quantize={"linear": "int8_dynamic"},
        out=tmp_path_factory.mktemp("int8") / "attended.aotair",
    )


def test_an_artifact_rounds_an_input_once_and_packs_its_weights(artifact):
    with aotair.load(artifact) as model:
        for bucket in model.program.entry_points[0].buckets:
            ops = [model.program.ops[model.program.instructions[n].op].name for n in bucket.code]
            assert ops.count("air::dynamic_quant.out") == 2 and ops.count("air::quant_matmul.out") == 4
            assert sum(item.space == Space.PACKED for item in bucket.tensors) == 4, "one for each layer"


@BY_LIBRARY
def test_the_library_is_called_where_weights_are_packed_alone(artifact, monkeypatch):
    monkeypatch.setattr(join, "run", lambda: None)  # small ops each in a call of their own, as without aotair-kernels
    seen, real = [], bind.prepared
    monkeypatch.setattr(bind, "prepared", lambda *given_to: seen.append(real(*given_to)) or seen[-1])
    for packs in (True, False):
        seen.clear()
        with aotair.load(artifact, pack_weights=packs):
            assert any(isinstance(one, Rounding) for one in seen) is packs


def test_results_that_the_library_does_not_make_pack_nothing(tmp_path):
    row = {"x": {"shape": [4, 128], "dtype": "float16"}}
    out = aotair.build(
        model=Attended(0).half().eval(),
        name="half",
        inputs=row,
        quantize={"linear": "int8_dynamic"},
        out=tmp_path / "half.aotair",
    )
    with aotair.load(out) as model:
        (bucket,) = model.program.entry_points[0].buckets
        assert not any(item.space == Space.PACKED for item in bucket.tensors)


def test_an_artifact_gives_the_same_with_packed_weights_and_without_and_takes_others(artifact, tmp_path):
    x, other = torch.randn(16, 128), Attended(1).eval()
    safetensors.torch.save_file(other.state_dict(), tmp_path / "other.safetensors")
    found = []
    for packs in (True, False):
        with aotair.load(artifact, pack_weights=packs) as model:
            found.append(model(x).clone())
            model.load_weights(tmp_path / "other.safetensors")
            found.append(model(x).clone())
    torch.testing.assert_close(found[:2], found[2:], atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        assert (found[1] - other(x)).norm() < 0.03 * other(x).norm()
