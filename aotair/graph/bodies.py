"""Custom ops that no node has, as the ops that their own kernels call.

A kernel that is made of torch's ops (Python registered with torch.library, or composites) is run on fake tensors with a
bucket's sizes, and the calls that it makes stand for it. A kernel that reads values cannot be run so; of those that are
met in libraries `_SAME` says what they compute.
"""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree

from aotair_runtime.ops import NAMESPACES

from .fake import quiet_torch

_aten = torch.ops.aten
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_ALIGNED = 16  # bytes that divide the strides of the factors, or the kernel refuses them


class NoBody(Exception):
    """The kernel cannot be run on fake tensors; the message says why."""


def body(
    mode: FakeTensorMode, op: torch._ops.OpOverload, args: tuple, kwargs: Mapping, device: str
) -> torch.fx.GraphModule:
    """The calls that `op` makes on these fake arguments, as a graph whose placeholders are their tensors in order; what
    it writes into an argument is copied there at the end. `device`: the kind that the program is for. Raises NoBody."""
    leaves, spec = _pytree.tree_flatten((args, dict(kwargs)))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    known = _SAME.get(op.name())

    def run(*tensors: Tensor) -> object:
        given = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor
        own_args, own_kwargs = _pytree.tree_unflatten(given, spec)
        if known is not None:
            return known(device, *own_args, **own_kwargs)
        return kernel.call_boxed(_CPU, *own_args, **own_kwargs)

    try:
        kernel = None if known else torch.library.get_kernel(op.name(), "CPU")
        with mode, torch.no_grad(), quiet_torch():
            made = make_fx(functionalize(run, remove="mutations"))(*(leaves[place] for place in places))
    except Exception as error:
        raise NoBody(f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}") from error
    if made.graph.find_nodes(op="get_attr"):
        raise NoBody("it holds a tensor of its own")
    if any(node.target is op for node in made.graph.nodes):
        raise NoBody("it is no ops of torch")
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


def _grouped(device: str, input: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    """`input[offs[i - 1] : offs[i]] @ weight[i]` for each i: input (rows, k), weight (groups, k, n), ends offs."""
    if device == "npu":
        ends = offs.to(torch.int64)
        return torch.ops.npu.npu_grouped_matmul(
            [input], [weight], group_list=ends, group_list_type=0, group_type=0, split_item=3
        )[0]
    steps = [step * factor.element_size() for factor in (input, weight) for step in factor.stride() if step != 1]
    if input.dtype == torch.bfloat16 and all(step % _ALIGNED == 0 for step in steps):
        return _aten._grouped_mm.default(input, weight, offs)
    rows = torch.arange(input.shape[0], device=input.device).unsqueeze(1)
    group = (rows >= offs).sum(1, keepdim=True)
    result = input.new_zeros(input.shape[0], weight.shape[2])
    for number in range(weight.shape[0]):
        result = result + torch.where(group == number, input, 0) @ weight[number]
    return result


# What ops compute whose kernels read values.
_SAME: dict[str, Callable] = {"transformers::grouped_mm_fallback": _grouped}
