"""Which ops does the simulated device have? Those that torch_npu implements, run on the host instead.

Import this module in a process that has the environment of `run.py`, and call `install()` before using the device. All
that a test needs to steer the device is here too.
"""

import torch
import torch_npu  # noqa: F401  (registers the device)
from simattention import fusion_attention_v3
from simcann import (  # noqa: F401
    CALLS_THAT_CAN_FAIL,
    abandon,
    collective_bytes,
    collectives,
    communicators,
    fail_next,
    launches,
    limits,
    live_bytes,
    live_events,
    live_graphs,
    live_streams,
    memory_limit,
    null_device,
    peak_bytes,
    pending,
    rank_timeout,
    reserved_bytes,
    reset_peak,
    schedule,
)
from simexchange import combine, dispatch
from simkernels import (  # noqa: F401
    alias,
    clone,
    copy_,
    defers,
    format_cast,
    held_kernels,
    kernel_for,
    launch,
    take_failure,
    to_copy,
)
from simmeeting import all_gather_mm, mm_all_reduce, mm_reduce_scatter

# Ops that allocate, look at or reshape memory: torch_npu's own host code serves them.
_HOST_CODE = {
    "empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "_copy_from", "_copy_from_and_resize",
    "to", "contiguous", "as_strided", "view", "_unsafe_view", "_reshape_alias", "unfold", "alias", "detach", "set_",
    "resize_", "resize_as_", "record_stream", "is_pinned", "_pin_memory", "pin_memory", "_local_scalar_dense", "item",
    "is_set_to", "_resize_output_", "_has_same_storage_numel",
    "as_strided_", "transpose_", "t_", "squeeze_", "unsqueeze_",
}  # fmt: skip
_HOST_CODE_NPU = {
    "print_npugraph_tensor", "save_npugraph_tensor", "super_kernel_scope_begin", "super_kernel_scope_end",
    "set_op_timeout_ms",
    "get_npu_format", "get_storage_size", "npu_change_data_ptr", "npu_format_cast", "copy_memory_",
    "_npu_format_cast",
    "empty_with_format", "unsafe_empty_with_format", "empty_with_swapped_memory", "_npu_storage_resize",
}  # fmt: skip
_SPECIAL = {"copy_": copy_, "_to_copy": to_copy, "clone": clone}
_MEETING = {  # these launch tasks of their own: a reference on the host would meet nobody
    "npu_mm_all_reduce_base": mm_all_reduce,
    "npu_mm_reduce_scatter_base": mm_reduce_scatter,
    "npu_all_gather_base_mm": all_gather_mm,
    "npu_moe_distribute_dispatch_v2": dispatch,
    "npu_moe_distribute_combine_v2": combine,
}
_COMPOSITE = ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
_libraries: dict[str, torch.library.Library] = {}


def _implement(name: str, kernel) -> None:
    namespace, _, rest = name.partition("::")
    library = _libraries.setdefault(namespace, torch.library.Library(namespace, "IMPL"))
    library.impl(rest, kernel, "PrivateUse1", allow_override=True)


def _op(name: str):
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")


def register(name: str, reference=None) -> None:
    """Serve an op ("aten::add.Tensor", "npu::npu_rms_norm") with `reference`, by default the op's own CPU kernel.

    The reference takes and returns CPU tensors. Shapes of a captured call come from the op's Meta kernel, or from the
    reference on meta tensors where the op has none.
    """
    _implement(name, kernel_for(_op(name), reference))


def register_fused(references) -> None:
    """Serve ops of the namespace npu:: with these references, by name; those that meet other ranks stay as they are."""
    for name, reference in references.items():
        if name not in _MEETING:
            register(f"npu::{name}", reference)


def _no_reference(name: str):
    def kernel(*_args, **_kwargs):
        raise NotImplementedError(
            f"the simulated device has no kernel for {name}: simnpu.register({name!r}, reference)"
        )

    return kernel


def _falls_back(name: str):
    """On a device such an op runs on the CPU: it works, but not in a capture."""
    kernel = kernel_for(_op(name))

    def fallback(*args, **kwargs):
        if defers():
            raise RuntimeError(f"{name} has no kernel in torch_npu: it runs on the CPU, which a capture cannot record")
        return kernel(*args, **kwargs)

    return fallback


def _has(name: str, *keys: str) -> bool:
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys)


def _serves(name: str) -> bool:
    """Is this an op that computes on the device, as opposed to a view or host code?"""
    if name.partition("::")[2].partition(".")[0] in _HOST_CODE:
        return False
    schema = _op(name)._schema
    aliases = [a.alias_info for a in (*schema.arguments, *schema.returns) if a.alias_info is not None]
    return bool(schema.returns or aliases) and all(a.is_write for a in aliases)


def _install_aten(name: str) -> bool:
    try:
        served = _serves(name)
    except AttributeError:  # registered, but without a Python binding
        return False
    if not served:
        return False
    if _has(name, "PrivateUse1"):
        register(name)
    elif _has(name, "CPU") and not _has(name, *_COMPOSITE):
        _implement(name, _falls_back(name))
    else:
        return False
    return True


def install() -> int:
    """Give every op that torch_npu implements a host kernel, once per process; returns how many.

    Ops of the namespace npu:: have no CPU kernel: each raises until `register` gives it a reference. The one that
    aten's scaled_dot_product_attention turns into on the device, and those that meet other ranks, have it from the
    start.
    """
    if _libraries:
        return 0
    count = 0
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        if namespace == "aten":
            count += _install_aten(name)
        elif namespace == "npu" and _has(name, "PrivateUse1") and rest.partition(".")[0] not in _HOST_CODE_NPU:
            _implement(name, _no_reference(name))
    for base, kernel in _SPECIAL.items():
        _implement(f"aten::{base}", kernel)
    _implement("npu::_npu_format_cast", format_cast)
    register("npu::_npu_dtype_cast", lambda x, dtype: x.to(dtype))
    register("npu::npu_fusion_attention_v3", fusion_attention_v3)
    for name, kernel in _MEETING.items():
        _implement(f"npu::{name}", kernel)
    return count
