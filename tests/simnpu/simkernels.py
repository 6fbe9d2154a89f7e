"""How does an op run on the simulated device? Host kernels under PrivateUse1 that read and write device memory.

A kernel sees device memory through CPU tensors that alias it, and goes to the current stream like a real one: it runs
at once, or at each replay of the graph that is being captured, or when the event is recorded that blocks the stream.
"""

import ctypes
import itertools
import threading
from collections.abc import Callable

import simformats
import torch
import torch_npu
from simcann import QUEUED, RUNNER, cann, is_null
from torch.utils._pytree import tree_leaves, tree_map

_kernels: dict[int, Callable[[], object]] = {}
_numbers = itertools.count(1)
_failures: list[BaseException] = []
_lock = threading.Lock()  # of `_released`
_released = (ctypes.c_uint64 * 256)()


# ---- launching --------------------------------------------------------------------------------------------------
@RUNNER
def _run(number: int) -> int:
    try:
        with torch.inference_mode():  # a tensor made in inference mode may be written at a replay outside of it
            _kernels[number]()
    except BaseException as error:  # it cannot pass through C: launch() raises it, or it is the cause of a bad replay
        _failures.append(error)
        return 1
    return 0


cann.sim_set_runner(_run)
_LOCK_OF_PYTHON = ("PyGILState_Check", "PyEval_SaveThread", "PyEval_RestoreThread")
cann.sim_set_interpreter(*(ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p) for name in _LOCK_OF_PYTHON))


def stream() -> int:
    """The handle of the current stream."""
    return torch_npu._C._npu_getCurrentRawStream(torch_npu._C._npu_getDevice())


def defers() -> bool:
    """Would a kernel issued now run later: captured, part of an update, or behind an event?"""
    return bool(cann.sim_defers(stream()))


def forget_released() -> None:
    """Drop the kernels that no graph and no stream holds any more."""
    with _lock:
        while count := cann.sim_take_released(_released, len(_released)):
            for number in _released[:count]:
                del _kernels[number]


def held_kernels() -> int:
    """Kernels that graphs or blocked streams still hold."""
    forget_released()
    return len(_kernels)


def take_failure() -> BaseException | None:
    """The first error of a kernel that failed in a replay, once."""
    failure = _failures[0] if _failures else None
    _failures.clear()
    return failure


def launch(kernel: Callable[[], object], on: int | None = None) -> None:
    """Put a Python function on a stream: the current one, or that of the handle `on`."""
    number = next(_numbers)
    _kernels[number] = kernel
    status = cann.sim_launch(stream() if on is None else on, number)
    forget_released()
    if status <= QUEUED:
        return
    failure = take_failure()
    _kernels.pop(number, None)
    raise failure or RuntimeError(f"the device refused a launch, error code is {status}")


# ---- tensors ----------------------------------------------------------------------------------------------------
def alias(value):
    """A CPU tensor over the same bytes as a device tensor, `Blocks` over one in NZ; anything else as it is."""
    if isinstance(value, torch.Generator):
        return None if value.device.type == "npu" else value
    if not isinstance(value, torch.Tensor) or value.device.type != "npu":
        return value
    storage = value.untyped_storage()
    size = storage.nbytes()
    if not size or not value.numel():
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype)
    flat = torch.frombuffer((ctypes.c_char * size).from_address(storage.data_ptr()), dtype=torch.uint8)
    if simformats.is_nz(value):
        return simformats.blocks(value, flat)
    view = torch.empty(0, dtype=value.dtype)  # set_ asks only for the bytes that the view reaches
    return view.set_(flat.untyped_storage(), value.storage_offset(), value.size(), value.stride())


def like(value, device):
    """An empty tensor of the same shape, strides and type elsewhere; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=device)


def moved(tree, convert, device: str):
    """Arguments for another device: tensors converted, and `device=` pointing there."""
    tree = tree_map(convert, tree)
    return tree_map(lambda v: torch.device(device) if isinstance(v, torch.device) else v, tree)


def on_host(tree):
    """Arguments as CPU tensors over device memory."""
    return moved(tree, alias, "cpu")


def on_meta(tree):
    """Arguments as shapes alone; host generators do not exist there."""
    return moved(tree, lambda v: None if isinstance(v, torch.Generator) else like(v, "meta"), "meta")


def tensors(tree) -> list[torch.Tensor]:
    """The tensors in a result."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


# ---- kernels ----------------------------------------------------------------------------------------------------
def _is_written(argument) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _fit_outputs(op, written, args, kwargs) -> None:
    """Resize `out=` tensors that came empty, as the device's own kernels do."""
    outs = [t for t in tensors([args, kwargs]) if any(t is w for w in written)]
    if not any(t.numel() == 0 and t.device.type == "npu" for t in outs):
        return
    seen = {id(t): like(t, "meta") for t in outs}
    meta_args, meta_kwargs = moved((args, kwargs), lambda v: seen.get(id(v), like(v, "meta")), "meta")
    op(*meta_args, **meta_kwargs)
    for tensor in outs:
        if tensor.size() != seen[id(tensor)].size():
            tensor.resize_(seen[id(tensor)].size())


def _in_place(op, reference):
    """A kernel for an op whose results are tensors that it was given."""
    schema = op._schema
    written = [(i, a.name) for i, a in enumerate(schema.arguments) if _is_written(a)]
    resizes = any(name.startswith("out") or schema.overload_name.endswith("out") for _, name in written)

    def kernel(*args, **kwargs):
        results = [args[i] if i < len(args) else kwargs[name] for i, name in written]
        if resizes:
            _fit_outputs(op, tensors(results), args, kwargs)
        if not is_null() or defers():
            host_args, host_kwargs = on_host((args, kwargs))
            launch(lambda: reference(*host_args, **host_kwargs))
        return results[0] if len(schema.returns) == 1 else tuple(results) if schema.returns else None

    return kernel


def _shapes(op, reference, args, kwargs):
    """The results of a call as meta tensors: by the op's own Meta kernel, else by the reference's."""
    meta_args, meta_kwargs = on_meta((args, kwargs))
    try:
        return op(*meta_args, **meta_kwargs)
    except NotImplementedError:
        if reference is op:
            raise
        return reference(*meta_args, **meta_kwargs)


def _functional(op, reference):
    """A kernel for an op that makes new tensors (and may write some that it was given, as batch norm does)."""

    def kernel(*args, **kwargs):
        host_args, host_kwargs = on_host((args, kwargs))
        deferred = defers()
        unknown = deferred or is_null()  # the inputs hold nothing yet: only their shapes are known
        try:
            shapes = _shapes(op, reference, args, kwargs) if unknown else reference(*host_args, **host_kwargs)
        except NotImplementedError:  # values decide the shape: the host waits for them, which a capture cannot
            if not deferred or torch_npu.npu.is_current_stream_capturing():
                raise
            torch_npu.npu.current_stream().synchronize()
            deferred, shapes = False, reference(*host_args, **host_kwargs)
        outputs = tree_map(lambda v: like(v, "npu"), shapes)
        targets = [alias(t) for t in tensors(outputs)]

        def run():
            values = reference(*host_args, **host_kwargs) if deferred else shapes
            for target, value in zip(targets, tensors(values), strict=True):
                if value.numel():  # some CPU kernels leave out what nobody reads, the device's shapes do not
                    target.copy_(value)

        if deferred or not is_null():
            launch(run)
        return outputs

    return kernel


def _answer(reference):
    """A kernel for an op that gives the host a number: it waits for the stream."""

    def kernel(*args, **kwargs):
        torch_npu.npu.current_stream().synchronize()
        host_args, host_kwargs = on_host((args, kwargs))
        return reference(*host_args, **host_kwargs)

    return kernel


def plain(tree):
    """Arguments with the values of those in NZ as they are now."""
    return tree_map(lambda v: v.plain() if isinstance(v, simformats.Blocks) else v, tree)


def kernel_for(op, reference=None):
    """The kernel that serves `op` with `reference`, by default the op's own CPU kernel."""
    reference, name = reference or op, op.name()
    if name in simformats.READERS:
        kernel = _kernel_for(op, lambda *args, **kwargs: reference(*plain(args), **plain(kwargs)))
    else:
        kernel = _kernel_for(op, reference)

    def checked(*args, **kwargs):
        simformats.refuse(name, args, kwargs)
        return kernel(*args, **kwargs)

    return checked


def _kernel_for(op, reference):
    returns = op._schema.returns
    fresh = [r for r in returns if r.alias_info is None]
    if fresh and not any("Tensor" in str(r.type) for r in returns):
        return _answer(reference)
    return _functional(op, reference) if fresh else _in_place(op, reference)


# ---- copies: they choose by device, and may wait for the stream ---------------------------------------------------
def copy_(dst, src, non_blocking=False):
    """`dst.copy_(src)` where one of them is on the device. A copy that blocks cannot be captured, as on the device."""
    if is_null() and not defers():
        return dst
    target, source = alias(dst), alias(src)
    launch(lambda: target.copy_(plain(source)))
    if not non_blocking and "cpu" in (dst.device.type, src.device.type):
        torch_npu.npu.current_stream().synchronize()
    return dst


def to_copy(x, *, dtype=None, layout=None, device=None, pin_memory=None, non_blocking=False, memory_format=None):
    """`aten::_to_copy` by way of `copy_`."""
    kept = memory_format or torch.preserve_format
    shape = torch.empty_like(like(x, "meta"), dtype=dtype or x.dtype, memory_format=kept)
    target = like(shape, torch.device(device) if device is not None else x.device)
    return target.copy_(x, non_blocking=non_blocking)


def clone(x, *, memory_format=None):
    """`aten::clone` by way of `copy_`."""
    return to_copy(x, memory_format=memory_format)


def format_cast(x, acl_format):
    """`npu::_npu_format_cast`: the same values in another format, in new memory."""
    if int(torch_npu.get_npu_format(x)) == acl_format:
        return x
    whole = x.dim() > 1 and x.untyped_storage().nbytes() == x.numel() * x.element_size()
    fits = acl_format == simformats.ND or (simformats.allowed() and whole)
    if acl_format not in (simformats.ND, simformats.NZ) or not x.is_contiguous():
        raise RuntimeError(f"the simulated device casts no {list(x.stride())} to the format {acl_format}")
    found = acl_format if fits else simformats.ND
    made = torch.ops.npu.empty_with_format(list(x.shape), dtype=x.dtype, device=x.device, acl_format=found)
    target, source = alias(made), alias(x)
    launch(lambda: target.copy_(plain(source)))
    return made
