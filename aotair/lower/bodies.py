"""Ops that a node lacks, custom ones and torch's own without a kernel on its device, as the ops that they are made of.

A kernel that is made of torch's ops (Python registered with torch.library, or composites) is run on fake tensors with a
bucket's sizes, and the calls that it makes stand for it. A kernel that reads values cannot be run so; of those that are
met in libraries `_SAME` says what they compute.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._library.custom_ops import OPDEFS
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from aotair_runtime.confine.op_table import NAMESPACES
from aotair_runtime.devices import grouped, int8_rows

from ..graph.fake import quiet_torch
from ..target.target import Target

_aten = torch.ops.aten
_WITHOUT_KERNELS = "IPU"  # a device that torch knows by name and nobody has kernels for
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_ALIGNED = 16  # bytes that divide the strides of the factors, or the kernel refuses them


@dataclass(frozen=True)
class KernelCall:
    """One call that a kernel makes: its arguments are fake tensors and numbers."""

    op: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class NoBody(Exception):
    """The kernel cannot be run on fake tensors; the message says why."""


def body(
    mode: FakeTensorMode,
    op: torch._ops.OpOverload,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    target: Target,
) -> torch.fx.GraphModule:
    """The calls that `op` makes on these fake arguments, as a graph whose placeholders are their tensors in order; what
    it writes into an argument is copied there at the end. `target`: what the program is for. Raises NoBody."""
    reasons = []
    for function in _functions(op, target):
        try:
            return _traced(mode, op, function, args, kwargs)
        except Exception as error:
            reasons.append(_reason(error))
    raise NoBody("; ".join(reasons) or "it has none")


def kernel_calls(
    mode: FakeTensorMode, op: torch._ops.OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> tuple[KernelCall, ...]:
    """The calls that the kernel of `op` makes on these fake arguments, writes into its own memory included. Raises
    NoBody."""
    kernel, seen = next(_kernel(op), None), _Calls()
    if kernel is None:
        raise NoBody("it has none")
    try:
        with mode, torch.no_grad(), quiet_torch(), seen:
            kernel(*args, **kwargs)
    except Exception as error:  # a kernel raises what it likes where it looks into a tensor that has no numbers
        raise NoBody(_reason(error)) from error
    return tuple(seen.calls)


class _Calls(TorchDispatchMode):
    """Lists calls. A number that a kernel made a tensor of reaches a mode as a number again, which few ops take for a
    tensor: it becomes one again."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.calls: list[KernelCall] = []

    def __torch_dispatch__(self, op: Any, types: object, args: Any = (), kwargs: Any = None) -> object:
        kinds = [str(argument.type) for argument in op._schema.arguments]
        wrapped = (isinstance(v, (int, float, complex)) and kind == "Tensor" for v, kind in zip(args, kinds))
        given = tuple(torch.scalar_tensor(v) if number else v for v, number in zip(args, wrapped))
        if op.namespace != "prim":  # a question about a tensor
            self.calls.append(KernelCall(op, given, kwargs or {}))
        return op(*given, **(kwargs or {}))


def _reason(error: Exception) -> str:
    first = str(error).strip().splitlines()[0] if str(error).strip() else ""
    return first if isinstance(error, NoBody) else f"{type(error).__name__}: {first}"


def _functions(op: torch._ops.OpOverload, target: Target) -> Iterator[Callable[..., object]]:
    """What computes the same as `op` with other ops, the first choice first."""
    if (known := _SAME.get(op.name())) is not None:
        yield functools.partial(known, target)
        return
    yield from _kernel(op)
    if op in decomposition_table:
        yield decomposition_table[op]


def _kernel(op: torch._ops.OpOverload) -> Iterator[Callable[..., object]]:
    # Of torch's own, what a device without a kernel runs; of a custom op, the host's kernel.
    key = _WITHOUT_KERNELS if op.namespace == "aten" else "CPU"
    if torch._C._dispatch_has_computed_kernel_for_dispatch_key(op.name(), key):
        yield functools.partial(torch.library.get_kernel(op.name(), key).call_boxed, _CPU)


def _traced(
    mode: FakeTensorMode,
    op: torch._ops.OpOverload,
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
) -> torch.fx.GraphModule:
    leaves, spec = _pytree.tree_flatten((args, dict(kwargs)))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def run(*tensors: Tensor) -> object:
        given = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor
        own_args, own_kwargs = _pytree.tree_unflatten(given, spec)
        return function(*own_args, **own_kwargs)

    fakes = [leaves[place] for place in places]
    with mode, torch.no_grad(), quiet_torch():
        made = make_fx(run)(*fakes)
        if made.graph.find_nodes(op="get_attr"):
            raise NoBody("it holds a tensor of its own")
        # The kernel's calls, not the kernel: it may look into tensors, and these are wrapped ones.
        made = make_fx(functionalize(made, remove="mutations"))(*fakes)
    if any(node.target is op for node in made.graph.nodes):
        raise NoBody("it is no other ops")
    made.graph.eliminate_dead_code()
    return made


def defining_packages(ops: Iterable[str]) -> dict[str, str]:
    """By namespace, of ops that are not the format's own: the package that defines them, as far as that is known."""
    found = {}
    for name in ops:
        namespace, _, op = name.partition("::")
        if namespace not in NAMESPACES:
            known = OPDEFS.get(f"{namespace}::{op.partition('.')[0]}")
            package = known._init_fn.__module__.partition(".")[0] if known else f"what defines {namespace}::"
            found[namespace] = package
    return dict(sorted(found.items()))


def _grouped(target: Target, input: Tensor, weight: Tensor, offs: Tensor, bias: Tensor | None = None) -> Tensor:
    """`input[offs[i - 1] : offs[i]] @ weight[i] + bias[i]` for each i: input (rows, k), weight (groups, k, n), ends
    offs, bias (groups, n)."""
    if (input.dim(), weight.dim()) != (2, 3):
        raise NoBody("it is served for an input of two dimensions and a weight of three")
    if target.is_host:
        product: Tensor = grouped.OP(input, weight, offs, bias)
        return product
    if target.grouped_matmul:
        # The kernel adds float32 to products of bfloat16.
        added = None if bias is None else [bias.float() if bias.dtype == torch.bfloat16 else bias]
        products: list[Tensor] = torch.ops.npu.npu_grouped_matmul(
            [input],
            [weight],
            bias=added,
            group_list=offs.to(torch.int64),
            group_list_type=0,
            group_type=0,
            split_item=3,
        )
        return products[0]
    rows = torch.arange(input.shape[0], device=input.device).unsqueeze(1)
    group = (rows >= offs).sum(1)
    result = _of_groups(input, weight, offs, group)
    if bias is None:
        return result
    known = group < weight.shape[0]
    own = bias.index_select(0, torch.where(known, group, 0))
    return result + torch.where(known.unsqueeze(1), own, 0)


def _of_groups(input: Tensor, weight: Tensor, offs: Tensor, group: Tensor) -> Tensor:
    """The products alone, on a GPU: `group` is that of each row."""
    steps = [step * factor.element_size() for factor in (input, weight) for step in factor.stride() if step != 1]
    if input.dtype == torch.bfloat16 and all(step % _ALIGNED == 0 for step in steps):
        product: Tensor = _aten._grouped_mm.default(input, weight, offs.to(torch.int32))
        return product
    groups, known = weight.shape[0], (group < weight.shape[0]).unsqueeze(1)
    if input.shape[0] < groups:  # fewer matrices to copy than to go through
        own = weight.index_select(0, torch.where(known.squeeze(1), group, 0))
        return torch.where(known, torch.bmm(input.unsqueeze(1), own).squeeze(1), 0)
    result = input.new_zeros(input.shape[0], weight.shape[2])
    for number in range(groups):
        result = result + torch.where(group.unsqueeze(1) == number, input, 0) @ weight[number]
    return result


# What ops compute whose kernels read values.
_SAME: dict[str, Callable[..., Tensor]] = {
    "transformers::grouped_mm_fallback": _grouped,
    "aten::_grouped_mm": _grouped,
    "air::grouped_mm": _grouped,
    "air::linear_int8": lambda _, *given: int8_rows.in_floats(*given),
}
