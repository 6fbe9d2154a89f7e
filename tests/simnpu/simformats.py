"""How does a matrix lie in Ascend's private format NZ, and which kernels read it there?

In blocks of 16 rows by 32 bytes, one column of blocks after the other; what rows and columns lack of whole blocks is
zero. torch_npu itself knows the format of each storage (`torch_npu.get_npu_format`) and how large it is.
"""

import math
from dataclasses import dataclass

import torch
import torch_npu
from torch.utils._pytree import tree_leaves

NZ, ND = 29, 2  # CANN's numbers
_ROWS, _BYTES = 16, 32  # of a block
# By kernel: the places among its arguments that may be in NZ, and whether it may be turned (`t()`) there.
READERS = {
    "aten::mm": ((1,), True),
    "aten::mm.out": ((1,), True),
    "aten::addmm": ((2,), True),
    "aten::addmm.out": ((2,), True),
    "npu::npu_mm_all_reduce_base": ((1,), True),
    "npu::npu_mm_reduce_scatter_base": ((1,), True),
    "npu::npu_all_gather_base_mm": ((1,), True),
    "npu::npu_quant_matmul": ((1,), False),
    "npu::npu_grouped_matmul": ((1,), False),
    "npu::npu_grouped_matmul.List": ((1,), False),
    "npu::npu_mla_prolog_v3": ((1, 2, 4), False),
    "npu::npu_mla_prolog_v3_functional": ((1, 2, 4), False),
}
NEEDING = frozenset(name for name in READERS if "mla_prolog" in name)  # these read nothing else there


def is_nz(value) -> bool:
    """Is this a tensor of the device whose storage is in NZ?"""
    on_device = isinstance(value, torch.Tensor) and value.device.type == "npu"
    if on_device and (value.is_neg() or value.is_conj()):  # asking for the format of such a view would copy it
        return False
    return on_device and int(torch_npu.get_npu_format(value)) == NZ


def allowed() -> bool:
    """May tensors be cast to private formats? Not before `torch.npu.config.allow_internal_format = True`."""
    return torch_npu._C._npu_getOption("ALLOW_INTERNAL_FORMAT") == b"enable"


@dataclass(frozen=True)
class Blocks:
    """A matrix, or several, over the bytes of a storage in NZ; `turned`: seen with the last two dimensions swapped."""

    bytes: torch.Tensor
    dtype: torch.dtype
    shape: tuple[int, ...]
    turned: bool

    def plain(self) -> torch.Tensor:
        """The values in their order, as a copy."""
        rows, columns = self.shape[-2:]
        lying = self._blocks().movedim(-4, -2).flatten(-4, -3).flatten(-2)[..., :rows, :columns].contiguous()
        return lying.mT if self.turned else lying

    def copy_(self, values: torch.Tensor) -> None:
        """Take these values, and zero beside them."""
        whole = self._blocks()
        rows, columns = self.shape[-2:]
        room = torch.zeros(*self.shape[:-2], whole.shape[-3] * _ROWS, whole.shape[-4] * whole.shape[-1]).to(self.dtype)
        room[..., :rows, :columns] = values.mT if self.turned else values
        whole.copy_(room.unflatten(-1, (-1, whole.shape[-1])).unflatten(-3, (-1, _ROWS)).movedim(-2, -4))

    def _blocks(self) -> torch.Tensor:
        """(…, columns of blocks, blocks in each, rows in each, numbers in each row)."""
        *lead, rows, columns = self.shape
        width = _BYTES // min(2, self.dtype.itemsize)
        shape = (*lead, -(-columns // width), -(-rows // _ROWS), _ROWS, width)
        if math.prod(shape) * self.dtype.itemsize != self.bytes.numel():
            raise RuntimeError("a part of a tensor in NZ has no place of its own")
        return self.bytes.view(self.dtype).view(shape)


def blocks(value, flat: torch.Tensor) -> Blocks:
    """A tensor in NZ whose storage has the bytes `flat`. Raises RuntimeError for a view of a part."""
    turned = not value.is_contiguous()
    lying = value.mT if turned else value
    if value.storage_offset() or not lying.is_contiguous():
        raise RuntimeError("a part of a tensor in NZ has no place of its own")
    return Blocks(flat, value.dtype, tuple(lying.shape), turned)


def refuse(name: str, args, kwargs) -> None:
    """Raises RuntimeError where a kernel gets a tensor in NZ that it does not read."""
    given = [leaf for leaf in tree_leaves([args, kwargs]) if is_nz(leaf)]
    places, turns = READERS.get(name, ((), False))
    there = [leaf for place in places if place < len(args) for leaf in tree_leaves(args[place])]
    if name in NEEDING and not all(map(is_nz, there)):
        raise RuntimeError(f"{name} takes its weights in FRACTAL_NZ alone")
    for value in given:
        if not any(value is leaf for leaf in there):
            raise RuntimeError(f"{name} got a tensor in FRACTAL_NZ where it takes none")
        if not turns and not value.is_contiguous():
            raise RuntimeError(f"{name} takes a weight in FRACTAL_NZ as it lies, not turned")
        if 1 in value.shape[-2:]:
            raise RuntimeError(f"{name} takes no weight of one row or column in FRACTAL_NZ")
