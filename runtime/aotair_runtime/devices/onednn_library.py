"""oneDNN by its C interface, version 3: is a library of it installed here, and how are its calls spelled?

Torch has oneDNN inside, but reaches it through wrappers that look the kernel up and allocate the result in each call.
A library of its own (`pip install onednn-cpu-gomp`, or the system's) prepares a kernel once, for memory that stays. It
has to share torch's threads: two sets of threads that wait by spinning would take the cores from each other.
"""

import contextlib
import ctypes
import functools
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch

from ..errors import RequirementError

# Numbers of dnnl_types.h and dnnl_common_types.h, which version 3 does not change.
F32, BF16, S8 = 3, 2, 5
SRC, SRC_1, DST, WEIGHTS, BIAS, POST_OP, SCALES = 1, 2, 17, 33, 41, 32768, 4096
TANH, LOGISTIC, GELU_TANH, SWISH, GELU_ERF = 33, 41, 43, 44, 49
ADD, MUL = 0x1FFF0, 0x1FFF1
UNIMPLEMENTED = 3  # a status
_ANY, _CPU, _IN_ORDER, _OPENMP = 1, 1, 1, 2
_INFERENCE, _DIRECT = 96, 1
_IMPLEMENTATION, _STRIDES, _WEIGHTS_DESC = 8, 14, 131
_INNER_BLOCKS, _INNER_SIZES, _INNER_DIMS = 263, 264, 265
_MAX_DIMS = 12
_Dims = c_int64 * _MAX_DIMS
_NAMES = ("libdnnl.so.3",)


class Argument(ctypes.Structure):
    """dnnl_exec_arg_t: what a memory is to a primitive, and the memory."""

    _fields_ = (("kind", c_int), ("memory", c_void_p))


class _Version(ctypes.Structure):
    _fields_ = (
        ("major", c_int),
        ("minor", c_int),
        ("patch", c_int),
        ("hash", c_char_p),
        ("cpu_runtime", c_uint),
        ("gpu_runtime", c_uint),
    )


_CALLS: dict[str, list[Any]] = {
    "dnnl_engine_create": [POINTER(c_void_p), c_int, c_size_t],
    "dnnl_stream_create": [POINTER(c_void_p), c_void_p, c_uint],
    "dnnl_stream_destroy": [c_void_p],
    "dnnl_memory_desc_create_with_strides": [POINTER(c_void_p), c_int, _Dims, c_int, _Dims],
    "dnnl_memory_desc_create_with_tag": [POINTER(c_void_p), c_int, _Dims, c_int, c_int],
    "dnnl_memory_desc_clone": [POINTER(c_void_p), c_void_p],
    "dnnl_memory_desc_destroy": [c_void_p],
    "dnnl_memory_desc_query": [c_void_p, c_int, c_void_p],
    "dnnl_memory_create": [POINTER(c_void_p), c_void_p, c_void_p, c_void_p],
    "dnnl_memory_destroy": [c_void_p],
    "dnnl_primitive_attr_create": [POINTER(c_void_p)],
    "dnnl_primitive_attr_set_post_ops": [c_void_p, c_void_p],
    "dnnl_primitive_attr_set_scales_mask": [c_void_p, c_int, c_int],
    "dnnl_primitive_attr_destroy": [c_void_p],
    "dnnl_post_ops_create": [POINTER(c_void_p)],
    "dnnl_post_ops_append_eltwise": [c_void_p, c_int, c_float, c_float],
    "dnnl_post_ops_append_binary": [c_void_p, c_int, c_void_p],
    "dnnl_post_ops_destroy": [c_void_p],
    "dnnl_matmul_primitive_desc_create": [POINTER(c_void_p), *[c_void_p] * 6],
    "dnnl_convolution_forward_primitive_desc_create": [
        *(POINTER(c_void_p), c_void_p, c_int, c_int),
        *[c_void_p] * 4,
        *[_Dims] * 4,
        c_void_p,
    ],
    "dnnl_reorder_primitive_desc_create": [POINTER(c_void_p), *[c_void_p] * 5],
    "dnnl_primitive_desc_query": [c_void_p, c_int, c_int, c_void_p],
    "dnnl_primitive_desc_destroy": [c_void_p],
    "dnnl_primitive_create": [POINTER(c_void_p), c_void_p],
    "dnnl_primitive_execute": [c_void_p, c_void_p, c_int, POINTER(Argument)],
    "dnnl_primitive_destroy": [c_void_p],
}


class OnednnError(RequirementError):
    """oneDNN refuses a call; `status` is its number for why."""

    def __init__(self, name: str, status: int):
        super().__init__(f"{name} of oneDNN failed with status {status}", fix="load with pack_weights=False")
        self.status = status


@dataclass(frozen=True)
class Blocks:
    """How a tensor lies in blocks: how many numbers apart they begin along each dimension, and, from the outermost to
    the innermost, the size of what they are divided into and its dimension."""

    strides: tuple[int, ...]
    sizes: tuple[int, ...]
    dims: tuple[int, ...]


class Library:
    """The calls of a library of oneDNN, each of which raises OnednnError where it fails."""

    def __init__(self, lib: ctypes.CDLL):
        self._lib = lib
        for name, types in _CALLS.items():
            getattr(lib, name).argtypes = types
            getattr(lib, name).restype = functools.partial(_succeeded, name)
        lib.dnnl_version.restype = POINTER(_Version)
        lib.dnnl_primitive_desc_query_md.argtypes = [c_void_p, c_int, c_int]
        lib.dnnl_primitive_desc_query_md.restype = c_void_p
        lib.dnnl_memory_desc_equal.argtypes = [c_void_p, c_void_p]
        lib.dnnl_memory_desc_get_size.argtypes = [c_void_p]
        lib.dnnl_memory_desc_get_size.restype = c_size_t
        self.execute = lib.dnnl_primitive_execute
        self._descriptions = WeakValueDictionary[object, "Description"]()
        said = lib.dnnl_version().contents
        self.version, self.runtime = (said.major, said.minor, said.patch), int(said.cpu_runtime)

    @functools.cached_property
    def engine(self) -> c_void_p:
        """The CPU; it lives as long as the process."""
        return self._new("dnnl_engine_create", _CPU, 0)

    def _new(self, name: str, *args: object) -> c_void_p:
        made = c_void_p()
        getattr(self._lib, name)(byref(made), *args)
        return made

    def _free(self, name: str, made: c_void_p) -> None:
        getattr(self._lib, name)(made)

    def rearrange(
        self,
        tensor: torch.Tensor,
        sizes: Sequence[int],
        strides: Sequence[int],
        kind: int,
        desc: c_void_p,
        memory: c_void_p,
    ) -> None:
        """Write a tensor, seen in these sizes and strides, into memory where it lies as `desc` says."""
        with self.held() as kept:
            plain = kept.desc(sizes, kind, strides)
            primitive = kept.primitive(kept.reorder(plain, desc))
            args = [kept.argument(SRC, plain, tensor), Argument(DST, memory)]
            self.execute(primitive, kept.stream(), len(args), (Argument * len(args))(*args))

    def blocks(self, desc: c_void_p, dims: int) -> Blocks:
        """In which blocks a tensor of so many dimensions lies."""
        count = c_int()
        self._lib.dnnl_memory_desc_query(desc, _INNER_BLOCKS, byref(count))
        sizes, inner = (self._numbers(desc, what, count.value) for what in (_INNER_SIZES, _INNER_DIMS))
        return Blocks(self._numbers(desc, _STRIDES, dims), sizes, inner)

    def _numbers(self, desc: c_void_p, what: int, count: int) -> tuple[int, ...]:
        found = POINTER(c_int64)()
        self._lib.dnnl_memory_desc_query(desc, what, byref(found))
        return tuple(found[:count])

    def described(
        self, key: object, make: "Callable[[Kept], tuple[c_void_p, Mapping[int, c_void_p]]]"
    ) -> "Description":
        """What `make` describes, or what it described for another of that key that is still there."""
        found = self._descriptions.get(key)
        if found is None:
            kept = Kept(self)
            found = self._descriptions[key] = Description(kept, *make(kept))
        return found

    @contextlib.contextmanager
    def held(self) -> Iterator["Kept"]:
        """What is made within is given back at its end."""
        kept = Kept(self)
        try:
            yield kept
        finally:
            kept.close()


class Kept:
    """Objects of oneDNN that live until they are closed, or nobody has this any more."""

    def __init__(self, library: Library):
        self.library, self._made = library, list[tuple[str, c_void_p]]()

    def close(self) -> None:
        while self._made:
            self.library._free(*self._made.pop())

    __del__ = close

    def _new(self, what: str, name: str, *args: object) -> c_void_p:
        made = self.library._new(name, *args)
        self._made.append((f"dnnl_{what}_destroy", made))
        return made

    def desc(self, shape: Sequence[int], kind: int, strides: Sequence[int] | None = None) -> c_void_p:
        """How a tensor lies; without strides as a primitive likes it best."""
        dims = _Dims(*shape)
        if strides is None:
            return self._new("memory_desc", "dnnl_memory_desc_create_with_tag", len(shape), dims, kind, _ANY)
        spread = _Dims(*strides)
        return self._new("memory_desc", "dnnl_memory_desc_create_with_strides", len(shape), dims, kind, spread)

    def memory(self, desc: c_void_p, address: int) -> c_void_p:
        if not address:
            raise ValueError("a tensor without memory is given to oneDNN")
        return self._new("memory", "dnnl_memory_create", desc, self.library.engine, c_void_p(address))

    def argument(self, kind: int, desc: c_void_p, tensor: torch.Tensor) -> Argument:
        """What a tensor that lies so is to a primitive; nobody but the caller keeps the tensor."""
        return Argument(kind, self.memory(desc, tensor.data_ptr()))

    def stream(self) -> c_void_p:
        return self._new("stream", "dnnl_stream_create", self.library.engine, _IN_ORDER)

    def post_ops(self, ops: Sequence[tuple[int, c_void_p | None]]) -> c_void_p:
        """Attributes of a primitive: what it does to each number of its result, and with which other tensor."""
        made, attr = (
            self._new("post_ops", "dnnl_post_ops_create"),
            self._new("primitive_attr", "dnnl_primitive_attr_create"),
        )
        for kind, other in ops:
            if other is None:
                self.library._lib.dnnl_post_ops_append_eltwise(made, kind, 1.0 if kind == SWISH else 0.0, 0.0)
            else:
                self.library._lib.dnnl_post_ops_append_binary(made, kind, other)
        self.library._lib.dnnl_primitive_attr_set_post_ops(attr, made)
        return attr

    def matmul(
        self,
        x: c_void_p,
        weight: c_void_p,
        bias: c_void_p | None,
        out: c_void_p,
        attr: c_void_p | None = None,
    ) -> c_void_p | None:
        """The description of a product; None where oneDNN has no kernel for it."""
        return self._described("dnnl_matmul_primitive_desc_create", x, weight, bias, out, attr)

    def convolution(
        self,
        x: c_void_p,
        weight: c_void_p,
        bias: c_void_p | None,
        out: c_void_p,
        steps: tuple[Sequence[int], Sequence[int], Sequence[int]],
        attr: c_void_p | None = None,
    ) -> c_void_p | None:
        """The description of a convolution with its stride, padding and dilation, in this order; None where oneDNN has
        no kernel for it."""
        stride, padding, between = _Dims(*steps[0]), _Dims(*steps[1]), _Dims(*(size - 1 for size in steps[2]))
        name, tensors = "dnnl_convolution_forward_primitive_desc_create", (x, weight, bias, out)
        return self._described(name, _INFERENCE, _DIRECT, *tensors, stride, between, padding, padding, attr)

    def _described(self, name: str, *args: object) -> c_void_p | None:
        try:
            return self._new("primitive_desc", name, self.library.engine, *args)
        except OnednnError as error:
            if error.status == UNIMPLEMENTED:
                return None
            raise

    def divided_for_each(self, dim: int) -> c_void_p:
        """Attributes of a primitive: its result is divided by a number for each place of a dimension."""
        attr = self._new("primitive_attr", "dnnl_primitive_attr_create")
        self.library._lib.dnnl_primitive_attr_set_scales_mask(attr, DST, 1 << dim)
        return attr

    def reorder(self, source: c_void_p, target: c_void_p, attr: c_void_p | None = None) -> c_void_p:
        engine = self.library.engine
        return self._new("primitive_desc", "dnnl_reorder_primitive_desc_create", source, engine, target, engine, attr)

    def primitive(self, desc: c_void_p) -> c_void_p:
        return self._new("primitive", "dnnl_primitive_create", desc)

    def implementation(self, desc: c_void_p) -> str:
        """What oneDNN calls the kernel of a description."""
        found = c_char_p()
        self.library._lib.dnnl_primitive_desc_query(desc, _IMPLEMENTATION, 0, byref(found))
        return (found.value or b"").decode("ascii", "replace")

    def are_equal(self, one: c_void_p, other: c_void_p) -> bool:
        """Whether two descriptions say that tensors lie alike."""
        return bool(self.library._lib.dnnl_memory_desc_equal(one, other))

    def weights_desc(self, desc: c_void_p) -> tuple[c_void_p, int]:
        """How a primitive wants its weights to lie, and the bytes that they then take."""
        lib = self.library._lib
        found = lib.dnnl_primitive_desc_query_md(desc, _WEIGHTS_DESC, 0)
        return self._new("memory_desc", "dnnl_memory_desc_clone", c_void_p(found)), lib.dnnl_memory_desc_get_size(found)


class Description:
    """What a primitive does, and how each tensor lies that it reads or writes, by what that is to it: the same for all
    calls that are alike but for their memory."""

    def __init__(self, kept: Kept, desc: c_void_p, lies: Mapping[int, c_void_p]):
        self._kept, self.desc, self.lies = kept, desc, lies


def _succeeded(name: str, status: int) -> None:
    if status:
        raise OnednnError(name, status)


def library() -> Library | None:
    """The library that is installed in this environment, else the system's; None where there is none that will do."""
    found, _ = _found()
    return found


def why_none() -> str:
    """Why there is no library; empty where there is one."""
    _, reason = _found()
    return reason


@functools.cache
def _found() -> tuple[Library | None, str]:
    reasons = list[str]()
    for name in (*(Path(sysconfig.get_path("data"), "lib", name) for name in _NAMES), *_NAMES):
        if isinstance(name, Path) and not name.is_file():
            continue
        found = _opened(str(name))
        if isinstance(found, Library):
            return found, ""
        reasons.append(found)
    first = next(filter(None, reasons), "not installed")
    return None, f"{first}: pip install onednn-cpu-gomp"


def _opened(name: str) -> Library | str:
    """The library of that name, or why it will not do; empty where there is none."""
    try:
        lib = ctypes.CDLL(name)
    except OSError as error:
        return f"{error}" if Path(name).is_absolute() else ""
    try:
        made = Library(lib)
    except AttributeError:
        return f"{name} has not the interface of oneDNN 3"
    if made.version[0] != 3 or made.runtime != _OPENMP:
        return f"{name} is not oneDNN 3 for OpenMP"
    return made if shares_threads(lib) else f"{name} has threads of its own, beside torch's"


def shares_threads(lib: ctypes.CDLL) -> bool:
    """Whether the library calls the OpenMP that torch calls."""
    try:
        torch_lib = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        own, torchs = (ctypes.cast(one.omp_get_max_threads, c_void_p).value for one in (lib, torch_lib))
    except (OSError, AttributeError):
        return False
    return own is not None and own == torchs
