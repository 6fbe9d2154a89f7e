"""What the device that a recipe builds for can do by itself: which ops have a kernel there."""

import functools
from dataclasses import dataclass, field
from importlib import resources

import torch

from aotair_runtime.confine.op_table import Allowed
from aotair_runtime.format.mesh import group_argument
from aotair_runtime.format.schema import Axis

_MOST_ROWS_PACKED, _MOST_ROWS_INT4 = 256, 64
_LEAST_PACKED = 1 << 15  # numbers of a weight: below, a call costs more than its product


@dataclass(frozen=True)
class Target:
    """`kind`: "cpu", "cuda" or "npu". Nothing of the device, or of its package, has to be on the build machine.
    `packs`: whether nodes may keep weights in a form of their own; `nz`: that of NPUs, in which their kernels are to
    read weights. `allowed`: what loads let programs call. `mesh`: the axes along which devices run a program together.
    `soc`: how the names of the devices begin; empty where they may be any of the kind.
    """

    kind: str
    packs: bool = True
    nz: bool = False
    allowed: Allowed = field(default_factory=Allowed)
    mesh: tuple[Axis, ...] = ()
    soc: str = ""

    def ranks(self, axis: object) -> int:
        """How many devices there are along an axis of the mesh; 0 where it has none of that name."""
        return next((one.size for one in self.mesh if one.name == axis), 0)

    def names(self, op: torch._ops.OpOverload) -> bool:
        """Whether a program may call `op` on a node."""
        return self.allowed.holds(op.name())

    def packs_linear(self, weight: torch.dtype, rows: int) -> bool:
        """Whether a linear layer over so many rows is faster where its weight is packed at load, and its result then
        copied to its place: measured by `benchmarks.packed`, for the CPUs that have bfloat16 products."""
        return self.packs and self.kind == "cpu" and weight == torch.bfloat16 and rows <= _MOST_ROWS_PACKED

    def packs_product(self, weight: torch.dtype, numbers: int) -> bool:
        """Whether nodes may be faster where they pack the weight, of so many numbers, of a product that otherwise reads
        it as it is stored and writes to its place: measured by `benchmarks.packed`. Each node decides for itself."""
        packed = (torch.float32, torch.bfloat16)
        return self.packs and self.kind == "cpu" and weight in packed and numbers >= _LEAST_PACKED

    def packs_convolution(self, weight: torch.dtype) -> bool:
        """Whether nodes pack the weights of convolutions, which then are faster in channels-last: measured by
        `benchmarks.networks`."""
        return self.packs and self.kind == "cpu" and weight in (torch.float32, torch.bfloat16)

    def packs_int8(self, result: object) -> bool:
        """Whether nodes pack the weight of a product of int8 that makes numbers of this dtype."""
        return self.packs and self.kind == "cpu" and result in (torch.float32, torch.bfloat16)

    def packs_int4(self, x: torch.dtype, rows: int) -> bool:
        """Whether a product with a weight of four bits is faster by the kernel for it than over floats made of it:
        measured by `benchmarks.packed`."""
        halves = (torch.bfloat16, torch.float16)
        return self.packs and self.kind == "cpu" and x in halves and rows <= _MOST_ROWS_INT4

    @property
    def sliced_calls(self) -> bool:
        """Whether calls that allocate their result are cut into slices that stay in the processor's cache."""
        return self.kind == "cpu"

    @property
    def is_host(self) -> bool:
        """Whether it is the CPU, which runs whatever the build machine does."""
        return self.kind == "cpu"

    @property
    def takes_host_arguments(self) -> bool:
        """Whether its kernels take lengths as lists of the host, which replays replace (`ops.host`)."""
        return self.kind == "npu"

    @property
    def grouped_matmul(self) -> bool:
        """Whether one kernel of its package multiplies groups of rows by a matrix each."""
        return self.kind == "npu"

    @property
    def quantized_linear(self) -> tuple[str, ...]:
        """What `quantize.linear` of a recipe may be: its package, or the runtime, has kernels for these. Those of CUDA
        for weights alone pack on a device alone."""
        both = ("int8_dynamic", "int8_static")
        return both if self.kind == "cuda" else (*both, "int8_weight_only", "int4_weight_only")

    @property
    def quantized_experts(self) -> tuple[str, ...]:
        """What `quantize.experts` of a recipe may be: its package, or the runtime, has kernels for these."""
        if self.kind == "cpu":
            return ("int8_dynamic",)
        return ("int8_dynamic", "int8_weight_only") if self.kind == "npu" else ()

    @property
    def workspace(self) -> int:
        """Bytes that libraries of kernels keep for each stream, where these are known: torch gives cuBLAS 32 MiB on
        Hopper and less elsewhere (`CUBLAS_WORKSPACE_CONFIG`). What CANN's kernels take only a device can tell."""
        return 32 << 20 if self.kind == "cuda" else 0

    def has_kernel(self, op: torch._ops.OpOverload) -> bool:
        """Whether the device runs `op` by a kernel written for it, or by ops that it has.

        For other devices than the CPU this is a list: the ops of torch_npu 2.13, and of torch's own table for CUDA.
        """
        if _registered(op, "CompositeImplicitAutograd"):
            return True
        if self.kind == "npu" and op.namespace == "air":
            return group_argument(op.name()) is not None  # `ops.host` has those that stand for ops of torch_npu
        if self.kind == "cpu" or op.namespace == "air":
            return _registered(op, self.kind.upper())
        return op.namespace != "aten" or _name(op) in _kernels(self.kind)

    def runs(self, op: torch._ops.OpOverload) -> bool:
        """Whether the device can run `op` at all: an op without a kernel and without parts would run on the host, and
        a capture cannot record that."""
        return self.is_host or self.has_kernel(op) or self.composed(op)

    def takes(self, op: torch._ops.OpOverload) -> bool:
        """Whether a program may call `op` on a node, and the device can run it."""
        return self.names(op) and self.runs(op)

    def composed(self, op: torch._ops.OpOverload) -> bool:
        """Whether `op`, where it has no kernel, calls other ops: the device runs it if it runs those."""
        return self.is_host or _registered(op, "CompositeExplicitAutograd")


HOST = Target("cpu")


def _registered(op: torch._ops.OpOverload, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key)


def _name(op: torch._ops.OpOverload) -> str:
    name: str = op.name()
    return name.partition("::")[2]


@functools.cache
def _kernels(kind: str) -> frozenset[str]:
    return frozenset(resources.files(__package__).joinpath("kernels").joinpath(f"{kind}.txt").read_text().split())
