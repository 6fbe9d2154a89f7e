"""How fast does this device copy memory, and multiply matrices? Measured, not looked up."""

from dataclasses import dataclass

import torch

from ..devices import Device

_COPIED = 64 << 20  # bytes: more than caches hold
_SIDE = {True: 1024, False: 8192}  # of the matrices, on the host and on another device
_ROUNDS = 5


@dataclass(frozen=True)
class Machine:
    """`bandwidth` in bytes a second, read and written ones together; `peak` in floating-point operations a second, of a
    product of float32 matrices. The best of some rounds; 0: the device gives no times."""

    bandwidth: float
    peak: float


def measure(device: Device) -> Machine:
    """The device's own figures, from a copy and a product."""
    side = _SIDE[device.is_host]
    with torch.inference_mode():
        source = torch.ones(_COPIED, dtype=torch.uint8, device=device.torch_device)
        target = torch.empty_like(source)
        left = torch.ones(side, side, device=device.torch_device)
        out = torch.empty_like(left)
        copies, products = [], []
        for _ in range(_ROUNDS):
            timer = device.timer()
            timer.mark()
            target.copy_(source)
            timer.mark()
            torch.mm(left, left, out=out)
            timer.mark()
            copied, multiplied = timer.seconds()
            copies.append(copied)
            products.append(multiplied)
    return Machine(_rate(2 * _COPIED, min(copies)), _rate(2 * side**3, min(products)))


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0
