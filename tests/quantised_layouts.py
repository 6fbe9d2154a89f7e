"""Small checkpoints in the layouts of tools that need a GPU or a compiler, number by number as these pack them.

Each gives the folder's tensors and what they stand for: the layer's weight, and its bias.
"""

import json
from pathlib import Path

import safetensors.torch
import torch


def _words(numbers: torch.Tensor, bits: int, order: range | tuple[int, ...]) -> torch.Tensor:
    """Numbers (rows, count) as words of 32 bits (rows, count * bits / 32), the one that `order` names first lowest."""
    per = 32 // bits
    packed = torch.zeros(numbers.shape[0], numbers.shape[1] // per, dtype=torch.int64)
    for row in range(numbers.shape[0]):
        for word in range(packed.shape[1]):
            packed[row, word] = sum(int(numbers[row, word * per + one]) << (bits * n) for n, one in enumerate(order))
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)


def _parts(seed: int, width: int, depth: int, groups: int, bits: int) -> tuple[torch.Tensor, ...]:
    """Numbers (width, depth), zeros (width, groups) and scales of a layer."""
    torch.manual_seed(seed)
    numbers = torch.randint(2**bits, (width, depth))
    zeros = torch.randint(2**bits, (width, groups))
    zeros[0, 0], zeros[1, 0] = 0, 2**bits - 1
    return numbers, zeros, (torch.rand(width, groups) + 0.5).half() / 2**bits


def gptq(
    name: str, seed: int, width: int, depth: int, size: int, bits: int = 4, version: int = 1, shuffled: bool = False
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """As GPTQModel and AutoGPTQ pack: weights along inputs, zeros along outputs, less one in the first version."""
    groups = depth // size
    numbers, zeros, scales = _parts(seed, width, depth, groups, bits)
    groups_of = torch.arange(depth) // size
    if shuffled:
        groups_of = groups_of[torch.randperm(depth)]
    stored = (zeros - 1) % 2**bits if version == 1 else zeros
    order = range(32 // bits)
    tensors = {
        f"{name}.qweight": _words(numbers, bits, order).t().contiguous(),
        f"{name}.qzeros": _words(stored.t(), bits, order),
        f"{name}.scales": scales.t().contiguous(),
        f"{name}.g_idx": groups_of.to(torch.int32),
    }
    return tensors, (numbers - zeros[:, groups_of]) * scales[:, groups_of].float()


def awq(name: str, seed: int, width: int, depth: int, size: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """As AutoAWQ packs for its product of matrices: along outputs, eight in this order."""
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    numbers, zeros, scales = _parts(seed, width, depth, depth // size, 4)
    tensors = {
        f"{name}.qweight": _words(numbers.t(), 4, order),
        f"{name}.qzeros": _words(zeros.t(), 4, order),
        f"{name}.scales": scales.t().contiguous(),
    }
    groups_of = torch.arange(depth) // size
    return tensors, (numbers - zeros[:, groups_of]) * scales[:, groups_of].float()


def msmodelslim(name: str, seed: int, kind: str, width: int, depth: int, bias: torch.Tensor | None) -> dict:
    """As msModelSlim saves a layer of a kind. A kind of FLOAT is a plain one."""
    torch.manual_seed(seed)
    weight = torch.randn(width, depth) / depth**0.5
    if kind == "FLOAT":
        return {f"{name}.weight": weight} | ({} if bias is None else {f"{name}.bias": bias})
    most = 7 if kind.startswith("W4") else 127
    scale = weight.abs().amax(1, keepdim=True) / most
    rows = (weight / scale).round().to(torch.int8)
    tensors = {"weight": rows, "weight_scale": scale, "weight_offset": torch.zeros_like(scale)}
    if kind == "W8A16":
        tensors["weight_offset"] = torch.randint(-9, 9, scale.shape).float()
    if kind == "W4A8_DYNAMIC":
        tensors["weight"] = (rows[1::2] << 4) | (rows[::2] & 15)
        tensors["scale_bias"] = 8 * (rows * scale).sum(1, keepdim=True)
    if bias is not None:
        tensors["bias"] = bias
    if kind == "W8A8":
        at, offset = torch.tensor([0.021]), torch.tensor([11.0])
        through = at * scale.squeeze(1)
        added = torch.zeros(width) if bias is None else bias
        tensors = {
            "weight": rows,
            "input_scale": at,
            "input_offset": offset,
            "quant_bias": (added / through - rows.float().sum(1) * offset).round().to(torch.int32),
            "deq_scale": through.view(torch.int32).to(torch.int64),
        } | ({} if bias is None else {"bias": bias})
    return {f"{name}.{part}": tensor for part, tensor in tensors.items()}


def described(folder: Path, tensors: dict[str, torch.Tensor], kinds: dict[str, str], **more: object) -> Path:
    """A folder of msModelSlim's; `kinds` are those of modules."""
    folder.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file(tensors, folder / "quant_model_weights.safetensors")
    names = {name: kinds[name.rpartition(".")[0]] for name in tensors}
    names |= {name: "FLOAT" for name in tensors if name.endswith(".bias")}
    said = {"version": "1.0.0", "model_quant_type": "W8A8", **names, "group_size": 0, **more}
    (folder / "quant_model_description.json").write_text(json.dumps(said))
    return folder


def configured(folder: Path, tensors: dict[str, torch.Tensor], config: dict) -> Path:
    """A folder whose config.json says how it is quantised."""
    folder.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    return folder
