"""For each fusion rule, random small graphs that match it or nearly do: other arguments, other users, other places."""

import functools
import itertools
import math
import random
from collections.abc import Callable

import torch

from aotair import fusion
from aotair.fusion.alike import AlikeRanks
from aotair.fusion.matcher import fwd_only
from aotair.ops import air, rows
from aotair.ops import experts as _experts  # noqa: F401 (defines ops)
from aotair.ops.registry import Unserved
from aotair.passes import canonicalise, fuse, remove_noop_ops
from aotair.passes.edits import Edits
from aotair.target.target import Target
from aotair_runtime.devices.groups import named
from aotair_runtime.format.schema import Axis

aten, npu = torch.ops.aten, torch.ops.npu
HALVES = (torch.float16, torch.bfloat16)
Case = tuple[Callable, tuple[torch.Tensor, ...]]
MESH = (Axis("tp", 2), Axis("one", 1), Axis("many", 3))
air.define()


def ranks():
    """Within, there are groups of ranks along these axes, which all have the same numbers."""
    return named({axis.name: AlikeRanks(axis.size) for axis in MESH})


def case(rule: str, seed: int) -> Case:
    """A function of tensors that returns a tuple of tensors, and inputs that it takes."""
    generator = torch.Generator().manual_seed(seed)
    for attempt in itertools.count():
        chooser = random.Random(f"{rule} {seed} {attempt}")
        function, inputs = _CASES[rule](chooser, lambda *shape: torch.randn(shape, generator=generator))
        try:
            with ranks():
                function(*(tensor.clone() for tensor in inputs))
        except (RuntimeError, IndexError, KeyError, ValueError, Unserved):
            continue  # what was chosen does not fit together
        return function, inputs


def rules() -> list[str]:
    return list(_CASES)


def fused(function: Callable, inputs: tuple, names: tuple[str, ...] | None = None) -> tuple:
    """The graph of a function before, and after the fusion rules (or those named); with the edits of each rule."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        fakes = tuple(mode.from_tensor(tensor) for tensor in inputs)
    before, after = (fwd_only(function, fakes, run_functional_passes=False) for _ in range(2))
    for step in (remove_noop_ops, canonicalise):
        step.run(after, edits_of(step.__name__))
    edits = {}
    for rule in fusion.RULES:
        if names is None or rule.name in names:
            edits[rule.name] = edits_of(rule.name)
            fuse.run(after, edits[rule.name], rule)
    after.graph.eliminate_dead_code()
    after.graph.lint()
    after.recompile()
    return before, after, edits


def edits_of(name: str) -> Edits:
    return Edits(name, Target("npu", mesh=MESH))


def difference(function: Callable, inputs: tuple, after: torch.fx.GraphModule) -> str | None:
    """How the fused graph's results, or what it leaves in its inputs, differ from the function's; nothing where they
    do not."""
    mine, theirs = [t.clone() for t in inputs], [t.clone() for t in inputs]
    with ranks():
        got, want = [*after(*mine), *mine], [*function(*theirs), *theirs]
    for number, (a, b) in enumerate(zip(got, want, strict=True)):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{number}: {a.dtype}{list(a.shape)} is not {b.dtype}{list(b.shape)}"
        away = (a.double() - b.double()).abs()
        if not a.numel():
            continue
        if a.dtype.is_floating_point:
            allowed = 4 * torch.finfo(a.dtype).eps * max(1e-30, b.double().abs().max().item())
            if (away > allowed).any() or not torch.equal(a.isfinite(), b.isfinite()):
                return f"{number}: off by {away.max().item():.3g}, allowed are {allowed:.3g}"
        elif away.max() > 1 or (away > 0).double().mean() > 0.02:
            return f"{number}: {int((away > 0).sum())} of {away.numel()} integers differ"
    return None


# ---- norms that are added to ----------------------------------------------------------------------------------------


def _norm(chooser: random.Random, make: Callable) -> tuple[Callable, tuple, dict]:
    """A function that norms, its tensors, and what the tail may want to know."""
    shape = chooser.choice([(4, 32), (2, 3, 32), (2, 3, 32), (2, 3, 32), (2, 3, 16), (2, 2, 2, 32), (2, 4, 30)])
    dtype = chooser.choice([*HALVES, *HALVES, torch.float32])
    rows = (1, *shape[1:]) if chooser.random() < 0.1 else shape
    tensors = make(*shape).to(dtype), make(*rows).to(dtype), make(shape[-1]).to(dtype)
    epsilon = chooser.choice([(), (1e-6,), (1e-5,)])
    extra = [name for name in ("y", "rstd", "x") if chooser.random() < (0.6 if name == "x" else 0.12)]
    write = chooser.random() < 0.08

    def norm(x1, x2, gamma):
        y, rstd, x = npu.npu_add_rms_norm.default(x1, x2, gamma, *epsilon)
        if write:
            aten.mul_.Tensor(x1, 2)
        return y, [{"y": y, "rstd": rstd, "x": x}[name] * 1.5 for name in extra]

    return norm, tensors, {"shape": shape, "dtype": dtype}


def _other_stream(chooser: random.Random) -> Callable:
    """Mostly calls; now and then inside a scope of another stream."""
    if chooser.random() > 0.08:
        return lambda function, *args, **kwargs: function(*args, **kwargs)

    def inside(function, *args, **kwargs):
        torch.ops.air.scope_enter(["_user_stream_label"], ["side"])
        result = function(*args, **kwargs)
        torch.ops.air.scope_exit()
        return result

    return inside


def _dynamic_quant(chooser: random.Random, make: Callable, views: tuple[str, ...] = ("none", "none", "none")) -> Case:
    norm, tensors, about = _norm(chooser, make)
    width = about["shape"][-1]
    view = chooser.choice([*views, "flatten", "rows", "halves", "times"])
    options = chooser.choice([{}, {}, {"smooth": True}, {"dst_type": 1}])
    smooth = make(width).to(about["dtype"]) + 2
    tail = chooser.choice(["plain", "column", "column", "column", "row"])
    call = _other_stream(chooser)

    def function(x1, x2, gamma, smooth):
        y, extra = norm(x1, x2, gamma)
        flat = _viewed(y, view)
        given = {"smooth_scales": smooth} if "smooth" in options and flat.shape[-1] == width else {}
        given |= {name: value for name, value in options.items() if name == "dst_type"}
        q, scale = call(npu.npu_dynamic_quant.default, flat, **given)
        scales = {"plain": lambda: scale, "column": lambda: scale.view(-1, 1), "row": lambda: scale.view(1, -1)}
        return (q, scales[tail](), *extra)

    return function, (*tensors, smooth)


def _viewed(y: torch.Tensor, how: str) -> torch.Tensor:
    if how == "flatten" and y.dim() > 2:
        return y.flatten(0, 1)
    if how == "rows":
        return y.view(-1, y.shape[-1])
    if how == "halves" and y.shape[-1] % 2 == 0:
        return y.view(-1, y.shape[-1] // 2)
    return y * 1.0 if how == "times" else y


def _cast(chooser: random.Random, make: Callable) -> Case:
    norm, tensors, _ = _norm(chooser, make)
    view = chooser.choice(["none", "none", "rows", "rows", "halves", "flatten", "times"])
    dtype = chooser.choice([torch.float32, torch.float32, torch.float32, torch.float16, torch.float64])
    by_npu, twice = chooser.random() < 0.5, chooser.random() < 0.3
    call = _other_stream(chooser)

    def function(x1, x2, gamma):
        y, extra = norm(x1, x2, gamma)
        source = _viewed(y, view)
        wide = call(npu._npu_dtype_cast.default, source, dtype) if by_npu else call(source.to, dtype)
        return (wide * 1, *extra, *([source * 3] if twice else []))

    return function, tensors


def _quant(chooser: random.Random, make: Callable) -> Case:
    norm, tensors, about = _norm(chooser, make)
    rank = len(about["shape"])
    axis = chooser.choice([-1, -1, -1, -1, rank - 1, 0])
    size = about["shape"][axis]
    scales = make(chooser.choice([size, size, size, 1])).abs() + 0.1
    zero = make(*scales.shape).mul(3).round()
    zero, offset = chooser.choice([zero, zero.to(torch.int32), zero.to(torch.int8)]), chooser.random() < 0.6
    dtype = chooser.choice([1, 1, 1, 1, 12, 12, 0, 3])
    mode = chooser.choice([(), (), (), (), (), (False,)])
    view = chooser.choice(["none", "none", "none", "none", "times", "rows"])
    call = _other_stream(chooser)

    def function(x1, x2, gamma, scales, zero):
        y, extra = norm(x1, x2, gamma)
        source = _viewed(y, view) if axis == -1 else y
        points = zero if offset else None
        return (call(npu.npu_quantize.default, source, scales, points, dtype, axis, *mode), *extra)

    return function, (*tensors, scales, zero)


# ---- products -------------------------------------------------------------------------------------------------------


def _bmm(chooser: random.Random, make: Callable) -> Case:
    batch, rows, inner, columns = chooser.choice([(2, 3, 128, 128), (2, 2, 128, 256), (3, 3, 128, 64), (2, 2, 32, 128)])
    swapped = chooser.choice([None, None, (0, 1), (0, 1), (1, 0), (-3, -2), (1, 2)])
    out = chooser.choice([(0, 1), (0, 1), (1, 0), (-3, 1), (1, 2), (0, 2), (-1, -2), (0, 0)])
    dtype = chooser.choice([*HALVES, torch.float32, torch.float64])
    left = make(batch, rows, inner).to(dtype)
    if swapped is not None:
        left = left.transpose(*swapped).contiguous()
    middle = chooser.choice(["none", "none", "view", "times", "used"])
    call = _other_stream(chooser)

    def function(x1, x2):
        source = x1 if swapped is None else aten.transpose.int(x1, *swapped)
        product = call(aten.bmm.default, source, x2)
        if middle == "view":
            product = product.view(product.shape)
        elif middle == "times":
            product = product * 1.5
        return (aten.transpose.int(product, *out) + 0, *([product * 2] if middle == "used" else []))

    return function, (left, make(batch, inner, columns).to(dtype) / inner)


# ---- what is lifted -------------------------------------------------------------------------------------------------


def _rms_norm(chooser: random.Random, make: Callable) -> Case:
    shape = chooser.choice([(4, 16), (2, 3, 16), (2, 16, 16)])
    dtype = chooser.choice([*HALVES, torch.float32, torch.float64])
    wide = chooser.random() < 0.85
    square = chooser.choice([lambda x: x.pow(2), lambda x: x * x, lambda x: x.pow(2), lambda x: x.pow(3).abs()])
    dims, keep = chooser.choice([([-1], True), ([-1], True), ([len(shape) - 1], True), ([0], True), ([-1], False)])
    epsilon = chooser.choice([1e-6, 1e-5, 1])
    reciprocal = chooser.choice([torch.rsqrt, torch.rsqrt, lambda x: x.pow(-0.5), lambda x: 1 / x.sqrt(), torch.sqrt])
    back = chooser.choice(["before", "before", "after", "never"])
    turn, divide, used = (chooser.random() < p for p in (0.5, 0.15, 0.12))
    shift = chooser.random() < 0.1
    by_op, implied = chooser.random() < 0.15, chooser.random() < 0.5
    gamma = make(*chooser.choice([shape[-1:], shape[-1:], shape[-1:], (1,), shape[-2:]])).to(dtype)
    if not keep and shape != (2, 16, 16):
        keep = True
    write = chooser.random() < 0.08

    def function(x, gamma):
        if by_op and gamma.shape == x.shape[-1:]:
            return (torch.nn.functional.rms_norm(x, gamma.shape, gamma, None if implied else epsilon * 1.0) * 1,)
        source = x.float() if wide else x
        mean = square(source).mean(dims, keep)
        if write:
            aten.mul_.Tensor(x, 2)
        shifted = mean + epsilon
        normed = source / shifted.sqrt() if divide else _times(source, reciprocal(shifted), turn)
        if back == "before":
            normed = normed.to(dtype)
        result = _times(normed, gamma + 1 if shift else gamma, turn)
        result = result.to(dtype) if back == "after" else result
        return (result * 1, *([normed * 2] if used else []))

    return function, (make(*shape).to(dtype), gamma)


def _times(a, b, turn: bool):
    return b * a if turn else a * b


def _add_norm(chooser: random.Random, make: Callable) -> Case:
    shape = chooser.choice([(4, 16), (2, 3, 16)])
    dtype = chooser.choice([*HALVES, torch.float32])
    other = make(*chooser.choice([shape, shape, shape, shape[-1:], (1, *shape[1:])]))
    other = other.to(chooser.choice([dtype, dtype, dtype, torch.float32]))
    alpha = chooser.choice([{}, {}, {}, {"alpha": 2}])
    epsilon = chooser.choice([(), (1e-6,), (1e-5,)])
    plus = chooser.random() < 0.3
    uses, scalar, rstd = chooser.random() < 0.7, chooser.random() < 0.08, chooser.random() < 0.1
    write, call = chooser.random() < 0.08, _other_stream(chooser)

    def function(x1, x2, gamma):
        added = torch.add(x1, 2.0 if scalar else x2, **alpha)
        if write:
            aten.mul_.Tensor(added, 2)
        y, root = call(npu.npu_rms_norm.default, added, 1 + gamma.float() if plus else gamma.to(added.dtype), *epsilon)
        return (y * 1, *([added * 1.5] if uses else []), *([root * 1] if rstd else []))

    return function, (make(*shape).to(dtype), other, make(shape[-1]).to(dtype))


def _swiglu(chooser: random.Random, make: Callable) -> Case:
    dtype = chooser.choice([*HALVES, torch.float32, torch.float64])
    whole = chooser.random() < 0.5
    tanh = functools.partial(aten.gelu.default, approximate="tanh")
    activation = chooser.choice([aten.silu.default] * 3 + [aten.gelu.default, tanh, aten.relu.default])
    turn, used, swap = (chooser.random() < p for p in (0.5, 0.12, 0.15))
    size, dim = chooser.choice([(8, -1), (8, -1), (8, 1), (4, -1), (2, 0)])
    rows = chooser.choice([(4, 8), (4, 8), (4, 8), (1, 8), (8,)])
    call = _other_stream(chooser)

    def function(x, up):
        gate = x
        if whole:
            gate, up = x.split(size, dim)[:2]
            if swap:
                gate, up = up, gate
        active = call(activation, gate)
        return (_times(active, up, turn) * 1, *([active * 2] if used else []))

    return function, (make(4, 16 if whole else 8).to(dtype), make(*rows).to(dtype))


def _rotary(chooser: random.Random, make: Callable) -> Case:
    shape = chooser.choice([(2, 3, 4, 16), (2, 3, 4, 16), (2, 4, 16), (2, 3, 4, 18)])
    dtype = chooser.choice([*HALVES, torch.float32])
    dim, half = chooser.choice([(-1, 2), (-1, 2), (-1, 2), (-1, 3), (-2, 2)])
    rows = chooser.choice([(1, 1, 4, shape[-1]), (1, 1, 4, shape[-1]), shape, (shape[-1],), (1, 1, 1, 1)])
    sign, swap, minus = (chooser.random() < p for p in (0.1, 0.1, 0.1))
    turn, other, used, split, apart = (chooser.random() < p for p in (0.5, 0.5, 0.1, 0.4, 0.35))
    step, angles = chooser.choice([2, 2, 2, 3]), chooser.choice([dtype, dtype, torch.float32])
    call = _other_stream(chooser)

    def function(x, cos, sin):
        if apart:
            even, odd = x[..., ::step], x[..., 1::step]
            even, odd = (odd, even) if swap else (even, odd)
            turned = torch.stack((odd if sign else -odd, even), dim).flatten(-2)
            return (_times(x, cos, turn) + _times(turned, sin, other), *([turned * 2] if used else []))
        cut = x.shape[dim] // half
        first, second = x.split(cut, dim)[:2] if split else (x.narrow(dim, 0, cut), x.narrow(dim, cut, cut))
        if swap:
            first, second = second, first
        turned = torch.cat((second if sign else -second, first), dim)
        one, two = _times(x, cos, turn), _times(turned, sin, other)
        return (call(torch.sub if minus else torch.add, one, two) * 1, *([turned * 2] if used else []))

    return function, (make(*shape).to(dtype), make(*rows).to(angles), make(*rows).to(angles))


def _attention(chooser: random.Random, make: Callable) -> Case:
    batch, heads, length, width = 2, 4, chooser.choice([1, 5, 5]), chooser.choice([16, 16, 32, 24])
    total = chooser.choice([length, 8])
    shared = chooser.choice([4, 4, 2, 1])
    dtype = chooser.choice([*HALVES, *HALVES, torch.float32])
    mask = chooser.choice(["none", "bool", "bool", "float", "heads", "causal"])
    repeat = chooser.choice(["kernel", "copy", "interleave"])
    scale = chooser.choice([{}, {"scale": 0.3}])
    turn = chooser.choice([None, (1, 2), (1, 2), (-2, 1), (2, 3)])
    call = _other_stream(chooser)

    def function(query, key, value, seen):
        options = dict(scale)
        if shared != heads and repeat == "kernel":
            options["enable_gqa"] = True
        elif shared != heads:
            key, value = (_repeated(t, heads // shared, tiled=repeat == "interleave") for t in (key, value))
        if mask == "causal":
            options["is_causal"] = True
        elif mask != "none":
            options["attn_mask"] = seen
        result = call(torch.nn.functional.scaled_dot_product_attention, query, key, value, **options)
        return ((result if turn is None else aten.transpose.int(result, *turn)) * 1,)

    seen = make(*((batch, heads) if mask == "heads" else (1, 1)), length, total)
    seen[..., 0] = 1  # every query sees something
    seen = seen.to(dtype) if mask == "float" else seen > 0
    shapes = ((heads, length), (shared, total), (shared, total))
    return function, (*(make(batch, *shape, width).to(dtype) for shape in shapes), seen)


def _repeated(x, times: int, *, tiled: bool):
    batch, heads, length, width = x.shape
    if tiled:
        return x[:, None].expand(batch, times, heads, length, width).reshape(batch, heads * times, length, width)
    return x[:, :, None].expand(batch, heads, times, length, width).reshape(batch, heads * times, length, width)


def _gating(chooser: random.Random, make: Callable) -> Case:
    experts, groups, kept = chooser.choice([(8, 2, 1), (8, 1, 1), (12, 3, 2), (8, 4, 2)])
    kind, k = chooser.choice(["before", "after", "sigmoid", "sigmoid", "maximum"]), chooser.choice([1, 2, 3])
    dim, sort = chooser.choice([-1, -1, 1, 0]), True  # without it any order is right
    best, filled = chooser.choice([2, 2, 2, 1]), chooser.choice([float("-inf"), float("-inf"), 0.0])
    scale, used, biased = chooser.choice([None, 2.5]), chooser.random() < 0.12, chooser.random() < 0.8
    dtype = chooser.choice([*HALVES, torch.float32, torch.float32, torch.float64])

    def function(x, bias):
        if kind == "after":
            values, chosen = x.topk(k, -1, True, sort)
            return values.softmax(dim) * 1, chosen, *([values * 2] if used else [])
        scores = x.sigmoid() if kind == "sigmoid" else x.softmax(dim)
        if kind == "before":
            return *scores.topk(k, dim, True, sort), *([scores * 2] if used else [])
        choice = scores + bias if biased and kind == "sigmoid" else scores
        parts = choice.view(-1, groups, experts // groups)
        judged = parts.topk(best, -1)[0].sum(-1) if kind == "sigmoid" else parts.max(-1).values
        mask = torch.zeros_like(judged).scatter(1, judged.topk(kept, -1, True, False)[1], 1)
        mask = mask.unsqueeze(-1).expand(-1, groups, experts // groups).reshape(-1, experts)
        choice = choice.masked_fill(~mask.bool(), filled if kind == "sigmoid" else 0.0)
        values, chosen = choice.topk(k, -1, True, sort)
        if kind == "sigmoid":
            values = scores.gather(1, chosen)
            values = values / (values.sum(-1, keepdim=True) + 1e-20)
        values = values if scale is None else values * scale
        return values * 1, chosen, *([scores * 2] if used else [])

    return function, (make(6, experts).to(dtype), make(experts).to(dtype).abs())


def _routing(chooser: random.Random, make: Callable) -> Case:
    number, k, tokens = chooser.choice([3, 4, 4]), chooser.choice([1, 2, 3]), chooser.choice([1, 5])
    dtype = chooser.choice([*HALVES, torch.float32, torch.float32, torch.float64])
    whole = chooser.choice([torch.int64, torch.int64, torch.int32, torch.int16])
    chosen = torch.stack([torch.tensor(chooser.sample(range(number), k)) for _ in range(tokens)])
    wide, back, order = chooser.random() < 0.4, chooser.random() < 0.7, chooser.random() < 0.15
    call = _other_stream(chooser)

    def function(x, experts, weights):
        experts = experts.to(torch.int64) if wide else experts
        rows, places, ends = call(torch.ops.air.route_tokens.default, x, experts, number)
        if not back:
            return rows * 1, ends
        places = places.flip(0) if order else places
        return torch.ops.air.combine_tokens.default(rows * 2, places, weights) * 1, ends

    weights = make(tokens, k).abs().to(chooser.choice([dtype, dtype, torch.float32]))
    return function, (make(tokens, 8).to(dtype), chosen.to(whole), weights)


def _met(chooser: random.Random, make: Callable, kind: str) -> Case:
    """A product before or after the ranks meet: `kind` says how they do."""
    rows, k = chooser.choice([128, 128, 128, 64]), chooser.choice([256, 256, 256, 128])
    shape = (
        (rows, k) if kind != "all_reduce" else chooser.choice([(rows, k), (2, rows, k), (2, 2, rows, k), (2, 64, k)])
    )
    dtype, axis = chooser.choice([*HALVES, *HALVES, torch.float32]), chooser.choice(["tp"] * 6 + ["one", "many"])
    ranks = next(one.size for one in MESH if one.name == axis)
    reduce, again = chooser.choice(["sum", "sum", "sum", "max"]), chooser.random() < 0.2
    linear, turned, call = chooser.random() < 0.6, chooser.random() < 0.1, _other_stream(chooser)
    left, right = make(*shape).to(dtype), (make(32, k) if linear else make(k, 32)).to(dtype)

    def function(x, weight):
        x = x.mT if turned else x
        given = torch.ops.air.all_gather.default(x, ranks, axis) if kind == "all_gather" else x
        made = aten.linear.default(given, weight) if linear else aten.mm.default(given, weight)
        if kind == "all_gather":
            return (made * 2, *((given * 3,) if again else ()))
        more = (reduce, axis) if kind == "all_reduce" else (reduce, ranks, axis)
        met = call(getattr(torch.ops.air, kind).default, made, *more)
        return (met * 2, *((made * 3,) if again else ()))

    return function, (left, right)


def _met_or_by_rows(chooser: random.Random, make: Callable, kind: str) -> Case:
    return (_met if chooser.random() < 0.5 else _by_rows)(chooser, make, kind)


def _by_rows(chooser: random.Random, make: Callable, kind: str) -> Case:
    """The same where each rank has some rows, of a number that ranks divide or not."""
    sizes = chooser.choice([(128,), (131,), (2, 64), (3, 43), (2, 2, 33), (3, 5)])
    k, dtype, axis = chooser.choice([256, 256, 128]), chooser.choice(HALVES), chooser.choice(["tp"] * 4 + ["many"])
    ranks, again = next(one.size for one in MESH if one.name == axis), chooser.random() < 0.3
    biased, call = chooser.random() < 0.3, _other_stream(chooser)
    shape = (-(-math.prod(sizes) // ranks), k) if kind == "all_gather" else (*sizes, k)

    def function(x, weight, bias):
        given = call(rows.ALL, x, sizes, ranks, axis) if kind == "all_gather" else x
        made = aten.linear.default(given, weight, *((bias,) if biased else ()))
        if kind == "all_gather":
            return (made * 2, *((given * 3,) if again else ()))
        return (call(rows.SUM, made, ranks, axis) * 2, *((made * 3,) if again else ()))

    return function, (make(*shape).to(dtype), make(32, k).to(dtype), make(32).to(dtype))


_CASES = {
    "lift_rms_norm": _rms_norm,
    "lift_add_rms_norm": _add_norm,
    "lift_swiglu": _swiglu,
    "lift_rotary": _rotary,
    "lift_attention": _attention,
    "lift_gating": _gating,
    "lift_routing": _routing,
    "add_rms_norm_dynamic_quant": _dynamic_quant,
    "add_rms_norm_flatten_dynamic_quant": functools.partial(_dynamic_quant, views=("flatten",) * 6),
    "add_rms_norm_cast": _cast,
    "transpose_batchmatmul": _bmm,
    "add_rms_norm_quant": _quant,
    "mm_all_reduce": functools.partial(_met, kind="all_reduce"),
    "mm_reduce_scatter": functools.partial(_met_or_by_rows, kind="reduce_scatter"),
    "all_gather_mm": functools.partial(_met_or_by_rows, kind="all_gather"),
    "group_attention": _attention,
}
