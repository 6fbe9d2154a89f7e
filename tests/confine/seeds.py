"""Calls of ops as torch's own samples make them: where hostile calls begin."""

import random
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from aotair_runtime.format.schema import GroupArg

_SMALL = 4096  # elements
_MOST = 6  # calls kept of each op


@dataclass(frozen=True)
class Spec:
    """A tensor argument: `dtype` by torch's name; `high` is one more than the greatest number in it, if of integers."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    high: int = 2


@dataclass(frozen=True)
class Call:
    name: str
    args: tuple[object, ...]
    kwargs: tuple[tuple[str, object], ...]


def spec(value: torch.Tensor) -> Spec:
    whole = value.numel() and not value.is_floating_point() and not value.is_complex() and value.dtype != torch.bool
    high = int(value.max()) + 1 if whole else 2
    return Spec(str(value.dtype).removeprefix("torch."), tuple(value.shape), tuple(value.stride()), high)


class _Recorder(TorchDispatchMode):
    def __init__(self, found: dict[str, dict[str, Call]]):
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        record(self.found, func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def record(found: dict[str, dict[str, Call]], op: torch._ops.OpOverload, args, kwargs) -> None:
    name = op.name()
    flat = [value for value in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
    if len(found[name]) >= _MOST or any(v.numel() > _SMALL or v.layout != torch.strided for v in flat):
        return

    def plain(value):
        return spec(value) if isinstance(value, torch.Tensor) else value

    call = Call(name, tuple(tree_map(plain, args)), tuple(tree_map(plain, kwargs).items()))
    found[name].setdefault(repr(call), call)


def recorded(dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.int64, torch.bool)) -> dict[str, list[Call]]:
    """By op, some calls that torch's samples of its functions come to."""
    from torch.testing._internal.common_methods_invocations import op_db

    found: dict[str, dict[str, Call]] = defaultdict(dict)
    warnings.simplefilter("ignore")
    for info in op_db:
        for dtype in dtypes:
            if dtype in info.dtypes:
                _run(info, dtype, found)
    return {name: list(calls.values()) for name, calls in found.items()}


def _run(info, dtype: torch.dtype, found) -> None:
    try:
        samples = iter(info.sample_inputs("cpu", dtype))
        for _ in range(12):
            sample = next(samples)
            with _Recorder(found):
                info.op(sample.input, *sample.args, **sample.kwargs)
    except (StopIteration, RuntimeError, TypeError, ValueError, NotImplementedError, AssertionError, IndexError):
        return  # what a sample cannot do here is no seed


def siblings(op: torch._ops.OpOverload) -> Iterator[torch._ops.OpOverload]:
    """The overloads of an op, and of the one that works in place."""
    base, ops = op.name().partition(".")[0].partition("::")[2].rstrip("_"), getattr(torch.ops, op.namespace)
    for packet in (getattr(ops, base, None), getattr(ops, base + "_", None)):
        for name in packet.overloads() if packet is not None else ():
            yield getattr(packet, name)


def seeds_of(op: torch._ops.OpOverload, found: dict[str, list[Call]]) -> list[Call]:
    """Calls of an op: recorded ones, else those of its siblings, with numbers for tensors where the op takes these."""
    name = op.name()
    if name in found:
        return found[name]
    made = []
    for other in siblings(op):
        for call in found.get(other.name(), ()):
            wanted = {a.name: str(a.real_type) for a in op._schema.arguments if not a.is_out}
            kinds = [kind for a, kind in zip(op._schema.arguments, wanted.values()) if not a.kwarg_only]
            if len(call.args) <= len(kinds) and all(key in wanted for key, _ in call.kwargs):
                made.append(Call(name, tuple(map(_fitting, call.args, kinds)), call.kwargs))
    return made


def _fitting(value: object, kind: str) -> object:
    if kind == "number" and isinstance(value, Spec):
        return 1.5 if "float" in value.dtype else 2
    return Spec("float32", (), ()) if kind == "Tensor" and isinstance(value, (int, float)) else value


def from_schema(op: torch._ops.OpOverload, rng: random.Random) -> Call:
    """A call of an op that nobody has written one of: a guess for each argument."""
    shape = rng.choice(((2, 3), (4,), (2, 4, 4), (2, 3, 8, 8), (16, 16), ()))
    values = [
        (
            a,
            _guess(str(a.real_type), shape, rng)
            if not a.has_default_value() or rng.random() < 0.3
            else a.default_value,
        )
        for a in op._schema.arguments
        if not a.is_out
    ]
    named = tuple((a.name, value) for a, value in values if a.kwarg_only)
    return Call(op.name(), tuple(value for a, value in values if not a.kwarg_only), named)


def _guess(kind: str, shape: tuple[int, ...], rng: random.Random) -> object:
    if kind.startswith("Optional["):
        return None if rng.random() < 0.5 else _guess(kind[9:-1], shape, rng)
    if kind.startswith("List["):
        return [_guess(kind[5:-1], shape, rng) for _ in range(rng.choice((1, 2, 2, 3)))]
    guesses = {"int": rng.choice((0, 1, 2, 3)), "float": 0.5, "number": 2, "bool": rng.random() < 0.5, "str": "none"}
    guesses |= {"ScalarType": torch.float32, "Layout": torch.strided, "MemoryFormat": torch.contiguous_format}
    return _t(*shape) if kind == "Tensor" else guesses.get(kind)


def _t(*shape: int, dtype: str = "float32", high: int = 2) -> Spec:
    return Spec(dtype, shape, tuple(torch.empty(shape, device="meta").stride()), high)


def _whole(*shape: int, high: int, dtype: str = "int64") -> Spec:
    return _t(*shape, dtype=dtype, high=high)


def _gates(rows: int) -> list[Spec]:
    return [_t(rows, 4), _t(rows, 5), _t(rows), _t(rows)]


_GROUP = GroupArg(0)  # of two ranks
_CHOSEN = _whole(3, 2, high=4, dtype="int32")  # of four experts, two for each token
_COLLECTIVES = {
    "all_reduce": (_t(4, 6), "sum", _GROUP),
    "all_gather": (_t(4, 6), 2, _GROUP),
    "reduce_scatter": (_t(4, 6), "sum", 2, _GROUP),
    "all_to_all": (_t(4, 6), 2, _GROUP),
    "stage_input": (_t(4, 6), 2, _GROUP),
    "stage_output": (_t(4, 6), 2, _GROUP),
    "moe_distribute_dispatch": (_t(3, 6), _CHOSEN, 4, 2, _GROUP),
    "moe_distribute_combine": (
        *(_t(12, 6), _CHOSEN, _t(3, 2)),
        *(_whole(12 * 128, high=9, dtype="int32"), _whole(4, high=5, dtype="int32"), 4, 2, _GROUP),
    ),
}
_RECURRENT = (True, 1, 0.0, False, False, False)  # biases, layers, dropout, train, both directions, batch first
# Of ops that torch has no samples of, or that its samples do not reach.
BY_HAND = (
    Call("aten::linear", (_t(4, 8), _t(6, 8), _t(6)), ()),
    Call("aten::linear.out", (_t(2, 4, 8), _t(6, 8), _t(6)), ()),
    Call("aten::linear", (_t(4, 64, dtype="bfloat16"), _t(32, 64, dtype="bfloat16"), None), ()),
    Call("aten::layer_norm", (_t(4, 8), [8], _t(8), _t(8), 1e-5, False), ()),
    Call("aten::group_norm", (_t(2, 8, 5), 4, _t(8), _t(8), 1e-5, False), ()),
    Call("aten::rms_norm", (_t(4, 8), [8], _t(8), 1e-6), ()),
    Call("aten::_fused_rms_norm", (_t(4, 8), [8], _t(8), 1e-6), ()),
    Call(
        "aten::scaled_dot_product_attention", (_t(2, 4, 7, 8), _t(2, 4, 5, 8), _t(2, 4, 5, 8), _t(7, 5), 0.0, False), ()
    ),
    Call(
        "aten::scaled_dot_product_attention",
        (_t(2, 4, 7, 8), _t(2, 1, 5, 8), _t(1, 1, 5, 6), _t(4, 1, 5), 0.0, False),
        (),
    ),
    Call(
        "aten::scaled_dot_product_attention",
        (_t(2, 4, 7, 8), _t(2, 2, 7, 8), _t(2, 2, 7, 8), None, 0.0, True),
        (("scale", 0.5), ("enable_gqa", True)),
    ),
    Call("aten::_native_batch_norm_legit_no_training", (_t(2, 3, 4, 4), _t(3), _t(3), _t(3), _t(3), 0.1, 1e-5), ()),
    Call("aten::_native_batch_norm_legit.no_stats", (_t(2, 3, 4, 4), _t(3), _t(3), True, 0.1, 1e-5), ()),
    Call("aten::_addmm_activation", (_t(6), _t(4, 8), _t(8, 6)), (("use_gelu", True),)),
    Call("aten::_int_mm", (_t(32, 16, dtype="int8", high=9), _t(16, 8, dtype="int8", high=9)), ()),
    Call(
        "aten::_grouped_mm",
        (_t(12, 16, dtype="bfloat16"), _t(3, 16, 8, dtype="bfloat16"), _whole(3, high=5, dtype="int32"), None, None),
        (),
    ),
    Call(
        "aten::_weight_int4pack_mm_for_cpu",
        (_t(4, 64, dtype="bfloat16"), _t(32, 32, dtype="uint8", high=255), 32, _t(2, 32, 2, dtype="bfloat16")),
        (),
    ),
    Call("aten::upsample_nearest2d.vec", (_t(2, 3, 4, 4), [8, 8], None), ()),
    Call("aten::upsample_nearest2d.vec", (_t(2, 3, 4, 4), None, [2.0, 2.0]), ()),
    Call("aten::upsample_bilinear2d.vec", (_t(2, 3, 4, 4), [7, 8], False, None), ()),
    Call("aten::upsample_bicubic2d.vec", (_t(2, 3, 4, 4), None, True, [1.5, 2.0]), ()),
    Call("aten::upsample_linear1d.vec", (_t(2, 3, 4), [9], False, None), ()),
    Call("aten::upsample_trilinear3d.vec", (_t(1, 2, 3, 4, 4), [4, 5, 6], False, None), ()),
    Call("aten::_upsample_bilinear2d_aa", (_t(2, 3, 8, 8), [4, 4], False, None, None), ()),
    Call("aten::_upsample_bicubic2d_aa", (_t(2, 3, 8, 8), [4, 4], False, None, None), ()),
    Call("aten::_unsafe_index.Tensor", (_t(5, 6), [_whole(4, high=5)]), ()),
    Call("aten::_unsafe_index.Tensor", (_t(5, 6), [None, _whole(4, high=6)]), ()),
    Call("aten::_adaptive_avg_pool2d", (_t(2, 3, 8, 8), [3, 3]), ()),
    Call("aten::_adaptive_avg_pool3d", (_t(2, 3, 4, 8, 8), [2, 3, 3]), ()),
    Call("aten::convolution", (_t(2, 4, 9), _t(6, 2, 3), _t(6), [1], [1], [1], False, [0], 2), ()),
    Call("aten::convolution", (_t(1, 4, 5, 5), _t(4, 3, 3, 3), None, [2, 2], [1, 1], [1, 1], True, [1, 1], 1), ()),
    Call(
        "aten::convolution",
        (_t(1, 2, 4, 5, 5), _t(4, 2, 3, 3, 3), None, [1] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1),
        (),
    ),
    Call("aten::matmul", (_t(2, 3, 4), _t(4, 5)), ()),
    Call("aten::_euclidean_dist", (_t(4, 3), _t(5, 3)), ()),
    Call("aten::col2im", (_t(1, 12, 9), [4, 4], [2, 2], [1, 1], [0, 0], [1, 1]), ()),
    Call("aten::im2col", (_t(1, 3, 4, 4), [2, 2], [1, 1], [0, 0], [1, 1]), ()),
    Call("aten::native_channel_shuffle", (_t(1, 8, 4, 4), 2), ()),
    Call("aten::affine_grid_generator", (_t(2, 2, 3), [2, 3, 5, 5], False), ()),
    Call("aten::argsort.stable", (_t(4, 5), True, -1, False), ()),
    Call("aten::view_as_complex_copy", (_t(4, 2),), ()),
    Call("aten::view_as_real_copy", (_t(4, dtype="complex64"),), ()),
    Call("aten::complex", (_t(4), _t(4)), ()),
    Call("aten::bitwise_and.Scalar", (_whole(4, high=9), 3), ()),
    Call("aten::__rshift__.Tensor", (_whole(4, high=9), _whole(4, high=3)), ()),
    Call("aten::__lshift__.Tensor", (_whole(4, high=9), _whole(4, high=3)), ()),
    Call("aten::slice_copy.Tensor", (_t(6, 5), 0, 1, 5, 2), ()),
    Call("aten::select_copy.int", (_t(6, 5), 1, 2), ()),
    Call("aten::lstm.input", (_t(3, 2, 4), [_t(1, 2, 5), _t(1, 2, 5)], _gates(20), *_RECURRENT), ()),
    Call("aten::gru.input", (_t(3, 2, 4), _t(1, 2, 5), _gates(15), *_RECURRENT), ()),
    Call("aten::rnn_tanh.input", (_t(3, 2, 4), _t(1, 2, 5), _gates(5), *_RECURRENT), ()),
    Call("aten::rnn_relu.input", (_t(3, 2, 4), _t(1, 2, 5), _gates(5), *_RECURRENT), ()),
    Call(
        "air::latent_attention",
        (
            _t(2, 4, 3, 8),
            _t(2, 4, 3, 4),
            _t(24, 8),
            _t(24, 4),
            _whole(2, 3, high=6),
            _t(2, 1, 3, 12, dtype="bool"),
            _whole(2, high=12),
            0.3,
        ),
        (),
    ),
    Call(
        "air::paged_attention",
        (
            _t(2, 4, 3, 8),
            _t(24, 16),
            _t(24, 16),
            _whole(2, 3, high=6),
            _t(2, 1, 3, 12, dtype="bool"),
            _whole(2, high=12),
            0.3,
        ),
        (),
    ),
    Call(
        "air::paged_attention",
        (
            _t(2, 4, 3, 8),
            _t(24, 16, dtype="int8", high=9),
            _t(24, 16, dtype="int8", high=9),
            _whole(2, 3, high=6),
            _t(2, 1, 3, 12, dtype="bool"),
            _whole(2, high=12),
            0.3,
            _t(24, 2),
            _t(24, 2),
        ),
        (),
    ),
    Call(
        "air::grouped_int_mm",
        (_t(12, 8, dtype="int8", high=9), _t(3, 8, 6, dtype="int8", high=9), _whole(3, high=12)),
        (),
    ),
    Call("air::channel_affine", (_t(2, 6, 4, 5, dtype="bfloat16"), _t(6), _t(6)), ()),
    Call("air::channel_affine_", (_t(12, 8), _t(8), _t(8)), ()),
    Call("air::dynamic_quant", (_t(12, 8),), ()),
    Call("air::linear_int8", (_t(12, 40), _t(6, 40, dtype="int8", high=9), _t(6)), ()),
    Call(
        "air::linear_int8", (_t(3, 32, dtype="bfloat16"), _t(6, 32, dtype="int8", high=9), _t(6, dtype="bfloat16")), ()
    ),
    Call(
        "air::quant_matmul",
        (_t(12, 8, dtype="int8", high=9), _t(6, 8, dtype="int8", high=9), _t(6), _t(12, 1), _t(6), torch.float32),
        (),
    ),
    Call("air::grouped_mm", (_t(12, 8), _t(3, 8, 6), _whole(3, high=12), None), ()),
    Call("air::grouped_mm", (_t(12, 8), _t(3, 8, 6), _whole(3, high=12), _t(3, 6)), ()),
    *(Call(f"air::{name}", args, ()) for name, args in _COLLECTIVES.items()),
    Call("aten::_logcumsumexp", (_t(4, 5), 1), ()),
    Call("aten::split_copy.Tensor", (_t(6, 5), 2, 0), ()),
)
