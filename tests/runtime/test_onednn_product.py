"""Products by a library of oneDNN: the numbers of their definition, in their places, for any number of threads."""

import functools
import os
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import aotair
from aotair_runtime.capture import bind
from aotair_runtime.devices import onednn_library, onednn_product
from aotair_runtime.devices.onednn_product import LibraryWeight, Product
from aotair_runtime.steps import library

aten = torch.ops.aten
MM, ADDMM, LINEAR = aten.mm.out, aten.addmm.out, aten.linear.default
BF16 = torch.bfloat16
pytestmark = pytest.mark.skipif(
    not onednn_product.has_kernels(torch.float32),
    reason=f"fast kernels of a library of oneDNN: {onednn_library.why_none() or 'not for this processor'}",
)
DTYPES = [torch.float32] + ([BF16] if onednn_product.has_kernels(BF16) else [])


def near(kind: torch.dtype) -> dict[str, float]:
    return {"atol": 1e-4, "rtol": 1e-5} if kind == torch.float32 else {"atol": 0.1, "rtol": 0.02}


def bound(op, *args, **kwargs) -> functools.partial:
    """A call as a program has it."""
    return functools.partial(op, *args, **kwargs)


# ---- one product -----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 140),
    width=st.integers(1, 300),
    out=st.integers(1, 6).map(lambda blocks: 64 * blocks) | st.integers(100, 300),
    bias=st.booleans(),
    kind=st.sampled_from(DTYPES),
)
def test_a_product_is_that_of_its_definition(rows: int, width: int, out: int, bias: bool, kind: torch.dtype):
    if not onednn_product.takes((out, width), kind):
        return
    random = torch.Generator().manual_seed(rows * width + out)
    weight, x, shift = (torch.randn(size, generator=random).to(kind) for size in ((out, width), (rows, width), (out,)))
    packed, result = LibraryWeight(weight), torch.full((rows + 2, out), 7.0).to(kind)
    place = result[1:-1]
    if kind == torch.float32:
        given_to = (shift, x, weight.t()) if bias else (x, weight.t())
        call = packed.call(ADDMM if bias else MM, given_to, {"out": place})
    else:
        call = packed.into(LINEAR, (x, weight, shift) if bias else (x, weight), {}, place)
    assert isinstance(call, Product)
    call()
    want = x.double() @ weight.double().t() + (shift.double() if bias else 0)
    torch.testing.assert_close(place.double(), want, **near(kind))
    assert (result[0] == 7).all() and (result[-1] == 7).all(), "it writes beside its place"
    before = place.clone()
    call()
    assert torch.equal(place, before)


X, W, B, OUT = torch.randn(3, 32), torch.randn(64, 32), torch.randn(64), torch.empty(3, 64)


@pytest.mark.parametrize(
    ("op", "args", "kwargs"),
    [
        (MM, (X, torch.ones(32, 64)), {"out": OUT}),  # not turned
        (MM, (X, W.t()), {}),
        (MM, (X,), {"out": OUT}),
        (MM, (torch.ones(3, 64)[:, ::2], W.t()), {"out": OUT}),
        (MM, (torch.ones(3, 33), W.t()), {"out": OUT}),
        (MM, (torch.ones(2, 3, 32), W.t()), {"out": OUT}),
        (MM, (torch.ones(0, 32), W.t()), {"out": torch.empty(0, 64)}),
        (MM, (X.double(), W.t()), {"out": OUT}),
        (MM, (X.to("meta"), W.t()), {"out": OUT}),
        (MM, (X, W.t()), {"out": OUT.double()}),
        (MM, (X, W.t()), {"out": torch.empty(2, 64)}),
        (MM, (X, W.t()), {"out": torch.empty(4, 64)}),
        (MM, (X, W.t()), {"out": torch.empty(3, 128)[:, ::2]}),
        (ADDMM, (X, W.t()), {"out": OUT}),
        (ADDMM, (torch.ones(1), X, W.t()), {"out": OUT}),
        (ADDMM, (torch.ones(128)[::2], X, W.t()), {"out": OUT}),
        (ADDMM, (B, X, W.t()), {"out": OUT, "alpha": 2}),
        (ADDMM, (3, X, W.t()), {"out": OUT}),
        (LINEAR, (X,), {}),
        (LINEAR, (X, W, torch.ones(63)), {}),
        (LINEAR, (3, W), {}),
        (LINEAR, (torch.ones(3, 31), W), {}),
    ],
)
def test_what_does_not_fit_the_weight_is_refused(op, args, kwargs):
    packed = LibraryWeight(W)
    assert packed.call(MM, (X, W.t()), {"out": OUT}) and packed.call(ADDMM, (B, X, W.t()), {"out": OUT})
    assert packed.call(op, args, kwargs) is None
    assert packed.into(LINEAR, (X, W, B), {}, OUT) and packed.into(LINEAR, (X, W), {"bias": B}, OUT)
    assert packed.into(LINEAR, (X, W), {}, torch.empty(3, 63)) is None
    assert packed.into(LINEAR, (X, W), {"other": 1}, OUT) is None


def test_what_lies_over_what_is_read_is_no_place():
    packed, both = LibraryWeight(torch.randn(64, 64)), torch.randn(4, 64)
    for x, out in ((both[:2], both[:2]), (both[:2], both[1:3]), (both[2:], both[1:3])):
        assert packed.into(LINEAR, (x, W), {}, out) is None
        assert packed.call(MM, (x, torch.ones(64, 64).t()), {"out": out}) is None
    assert packed.into(LINEAR, (both[:2], W, both[2]), {}, both[1:3]) is None
    assert packed.into(LINEAR, (both[:2], W, both[2]), {}, torch.empty(2, 64)) is not None


def test_it_lies_on_the_host_whatever_torchs_default_is():
    with torch.device("meta"):
        packed = LibraryWeight(W)
    result = torch.empty(3, 64)
    packed.call(MM, (X, W.t()), {"out": result})()
    torch.testing.assert_close(result, X @ W.t(), atol=1e-5, rtol=1e-5)
    library = onednn_library.library()
    assert library is not None
    with library.held() as kept, pytest.raises(ValueError, match="without memory"):
        kept.memory(kept.desc((1, 1), onednn_library.F32, (1, 1)), 0)


def test_where_the_library_has_no_kernel_the_op_is_called_as_it_is(monkeypatch: pytest.MonkeyPatch):
    packed, result = LibraryWeight(W), torch.empty(3, 64)
    monkeypatch.setattr(onednn_product, "_FAST", dict.fromkeys(onednn_product._FAST, "none"))
    assert packed.into(LINEAR, (X, W, B), {}, result) is None
    for op, args, kwargs in [(ADDMM, (B, X, W.t()), {"out": result}), (LINEAR, (X, W, B), {})]:
        call = packed.call(op, args, kwargs)
        assert not isinstance(call, Product)
        torch.testing.assert_close(call(), torch.addmm(B, X, W.t()), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", [(5, 64), (64,), (0, 8), (2, 64, 64)])
def test_weights_that_the_library_would_pad_by_much_or_that_are_none_stay_as_they_are(shape: tuple[int, ...]):
    assert not onednn_product.takes(shape, torch.float32) and not onednn_product.takes((64, 64), torch.float64)
    with pytest.raises(ValueError, match="no packed form"):
        LibraryWeight(torch.ones(shape))


def test_other_values_lie_at_the_same_address():
    packed, other, result = LibraryWeight(W), torch.randn(64, 32), torch.empty(3, 64)
    address, call = packed.address, packed.call(MM, (X, W.t()), {"out": result})
    packed.fill(other)
    call()
    torch.testing.assert_close(result, X @ other.t(), atol=1e-5, rtol=1e-5)
    assert packed.address == address
    for wrong in (torch.ones(32, 64), torch.ones(64, 32).double()):
        with pytest.raises(ValueError, match="not a weight of"):
            packed.fill(wrong)


# ---- what follows it -------------------------------------------------------------------------------------------------


def _after(out: torch.Tensor, other: torch.Tensor) -> dict[str, functools.partial]:
    return {
        "gelu": bound(aten.gelu_.default, out),
        "gelu tanh": bound(aten.gelu_.default, out, approximate="tanh"),
        "tanh": bound(aten.tanh_.default, out),
        "sigmoid": bound(aten.sigmoid_.default, out),
        "silu": bound(aten.silu_.default, out),
        "add": bound(aten.add_.Tensor, out, other),
        "mul": bound(aten.mul_.Tensor, out, other),
    }


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.sampled_from(sorted(_after(OUT, OUT))), min_size=1, max_size=4),
    rows=st.integers(1, 70),
    kind=st.sampled_from(DTYPES),
)
def test_a_product_does_what_follows_it_as_well(steps: list[str], rows: int, kind: torch.dtype):
    random = torch.Generator().manual_seed(rows)
    weight, x, other = (torch.randn(size, generator=random).to(kind) for size in ((64, 32), (rows, 32), (rows, 64)))
    one, both = torch.empty(rows, 64, dtype=kind), torch.empty(rows, 64, dtype=kind)
    packed = LibraryWeight(weight)
    single, joined = (packed.into(LINEAR, (x, weight), {}, out) for out in (one, both))
    apart = [single]
    for step in steps:
        apart.append(_after(one, other)[step])
        joined = joined.then(_after(both, other)[step])
        assert isinstance(joined, Product), step
    for call in apart:
        call()
    joined()
    torch.testing.assert_close(both.float(), one.float(), **near(kind))


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("step", sorted(_after(OUT, OUT)))
def test_what_is_not_finite_stays_so(step: str, kind: torch.dtype):
    values = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 0.0, 1e-40, -5.0])
    x = values.repeat(8).view(1, 64).to(kind)
    weight, result, other = torch.zeros(64, 64).to(kind), torch.empty(1, 64, dtype=kind), torch.ones(1, 64, dtype=kind)
    call = LibraryWeight(weight).into(LINEAR, (torch.zeros(1, 64).to(kind), weight, x[0].clone()), {}, result)
    call.then(_after(result, other)[step])()
    want = x.clone()
    _after(want, other)[step]()
    torch.testing.assert_close(result, want, equal_nan=True, **near(kind))


def test_a_result_is_written_over_in_another_shape_too():
    packed, result, other = LibraryWeight(W), torch.empty(2, 3, 64), torch.randn(2, 3, 64)
    x = torch.randn(2, 3, 32)
    call = packed.into(LINEAR, (x, W, B), {}, result).then(bound(aten.add_.Tensor, result, other))
    assert isinstance(call, Product)
    call()
    torch.testing.assert_close(result, torch.nn.functional.linear(x, W, B) + other, atol=1e-5, rtol=1e-5)


BIG = torch.zeros(9, 64)
PLACE, BESIDE = BIG[:3], BIG[3:6]


@pytest.mark.parametrize(
    "call",
    [
        bound(aten.gelu_.default, BESIDE),  # of something else
        bound(aten.gelu_.default, PLACE[:2]),  # of a part
        bound(aten.gelu_.default, PLACE, approximate="none", other=1),
        bound(aten.gelu_.default, PLACE, approximate="other"),
        bound(aten.exp_.default, PLACE),
        bound(aten.relu_.default, PLACE),  # oneDNN's makes 0 of NaN
        bound(aten.gelu.out, PLACE, out=BESIDE),
        bound(aten.add_.Tensor, PLACE, BESIDE, alpha=2),
        bound(aten.add_.Tensor, PLACE, PLACE),  # of itself
        bound(aten.add_.Tensor, PLACE, BIG[2:5]),  # of what it writes over
        bound(aten.add_.Tensor, PLACE, BESIDE[0]),  # the same for each row
        bound(aten.add_.Tensor, PLACE.t(), BESIDE.view(64, 3)),  # in another order
        bound(aten.add_.Tensor, PLACE, BESIDE.double()),
        bound(aten.add_.Tensor, PLACE, torch.zeros(3, 128)[:, ::2]),
        bound(aten.add_.Tensor, PLACE, 3.0),
        bound(aten.add_.Tensor, BESIDE, PLACE),
        bound(torch.relu_, PLACE),
        lambda: None,
    ],
)
def test_what_follows_stays_apart(call):
    product = LibraryWeight(W).call(MM, (X, W.t()), {"out": PLACE})
    assert product.then(call) is None
    assert product.then(bound(aten.gelu_.default, PLACE)) and product.then(bound(aten.add_.Tensor, PLACE, BESIDE))


class Block(torch.nn.Module):
    """Linear layers whose results are activated, and added to what there is."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = torch.nn.Linear(256, 512), torch.nn.Linear(512, 256)
        self.gate = torch.nn.Linear(256, 512, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = torch.nn.functional.gelu(self.up(x)) * torch.nn.functional.silu(self.gate(x))
        return torch.nn.functional.gelu(self.down(wide) + x)


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> Path:
    inputs = {"x": {"shape": ["n", 256], "dtype": "float32", "pad": "any"}}
    out = tmp_path_factory.mktemp("joined") / "block.aotair"
    return aotair.build(model=Block(), out=out, inputs=inputs, buckets={"n": [4, 12, 48]})


def test_a_program_has_fewer_calls_and_the_same_answers(block: Path, monkeypatch: pytest.MonkeyPatch):
    made: list[bind.Bound] = []
    of = bind.Bound.__init__
    monkeypatch.setattr(bind.Bound, "__init__", lambda self, *args: (of(self, *args), made.append(self))[0])
    with aotair.load(block) as model, aotair.load(block, pack_weights=False) as plain, torch.no_grad():
        for rows in (1, 4, 30, 48):
            x = torch.randn(rows, 256)
            torch.testing.assert_close(model(x), plain(x), atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(model(x), Block()(x), atol=1e-5, rtol=1e-5)
    packed = [bound for bound in made if any(isinstance(call, Product) for call in bound.calls)]
    assert len(packed) == (2 if library.is_wide() else 3), "few rows are no calls of oneDNN"
    for one in packed:
        assert sum(call is bind._done_before for call in one.calls) == 5  # gelu; silu, a product; a sum, gelu
        assert len(one.calls) == len(one.names)


@pytest.mark.skipif(BF16 not in DTYPES, reason="the library has no fast kernels for bfloat16 on this processor")
def test_in_bfloat16_some_rows_and_many_are_multiplied_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made, of = list[bind.Bound](), bind.Bound.__init__
    monkeypatch.setattr(bind.Bound, "__init__", lambda self, *args: (of(self, *args), made.append(self))[0])
    # Values beyond make numbers of which one rounding is more than the tolerance: the model multiplies two layers.
    model, x = Block().to(BF16), {"shape": ["n", 256], "dtype": "bfloat16", "range": [-4, 4], "pad": "any"}
    verify = {"atol": 0.05, "rtol": 0.05}
    out = aotair.build(model=model, out=tmp_path / "m.aotair", inputs={"x": x}, buckets={"n": [12, 300]}, verify=verify)
    made.clear()
    with aotair.load(out) as served, torch.no_grad():
        for rows in (3, 300):
            given_to = torch.randn(rows, 256).to(BF16)
            torch.testing.assert_close(served(given_to), model(given_to), atol=0.02, rtol=0.02)
        held = sum(one.nbytes for one in {id(one): one for one in served._resident.packed.values()}.values())
        assert held == 3 * 256 * 512 * 2, "a weight is packed once for all buckets"
    assert [sum(isinstance(call, Product) for call in one.calls) for one in made] == [3, 3]


# ---- threads, processes ----------------------------------------------------------------------------------------------


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_a_kernel_is_prepared_anew_for_another_number_of_threads(threads):
    packed, result = LibraryWeight(W), torch.empty(3, 64)
    threads(2)
    call = packed.call(MM, (X, W.t()), {"out": result})
    assert not call._threads, "what follows may still be added to it"
    for count in (1, 4, 2):
        threads(count)
        result.zero_()
        call()
        assert call._threads == count
        torch.testing.assert_close(result, X @ W.t(), atol=1e-5, rtol=1e-5)


def test_calls_from_several_threads_answer_as_one_does(block: Path):
    with aotair.load(block, enable_output_clone=True) as model:
        given_to = [torch.randn(rows, 256) for rows in (1, 3, 20, 48)]
        want, wrong = [model(x).clone() for x in given_to], list[int]()

        def run(number: int) -> None:
            for _ in range(30):
                if not torch.equal(model(given_to[number]), want[number]):
                    wrong.append(number)

        running = [threading.Thread(target=run, args=(number,)) for number in range(len(given_to))]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_that_was_forked_calls_with_a_thread_of_its_own(block: Path, threads):
    threads(2)
    x = torch.randn(48, 256)
    with aotair.load(block) as model:
        want = model(x).clone()
        child = os.fork()
        if not child:
            torch.set_num_threads(1)  # the threads of the first process are not in this one
            os._exit(0 if torch.allclose(model(x), want, atol=1e-5) else 1)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_calls_that_are_alike_but_for_their_memory_share_a_description():
    first, second, wide = LibraryWeight(W), LibraryWeight(W + 1), LibraryWeight(torch.randn(128, 32))

    def made(weight: LibraryWeight, rows: int, bias: torch.Tensor | None, *steps: str) -> Product:
        x, result = torch.randn(rows, 32), torch.empty(rows, weight.outs)
        call = weight.into(LINEAR, (x, torch.empty(weight.outs, 32), bias), {}, result)
        for step in steps:
            call = call.then(_after(result, torch.ones_like(result))[step])
        assert isinstance(call, Product)
        return call

    one, other = made(first, 3, B), made(second, 3, B)
    assert one._description is other._description
    rest = [made(first, 4, B), made(first, 3, None), made(first, 3, B, "gelu"), made(first, 3, B, "add"),
            made(wide, 3, None)]  # fmt: skip
    assert len({id(call._description) for call in (one, *rest)}) == 1 + len(rest)
    for call, weight in ((one, W), (other, W + 1)):
        call()
        want = torch.nn.functional.linear(call._operands.x, weight, B)
        torch.testing.assert_close(call._result, want, atol=1e-4, rtol=1e-4)
