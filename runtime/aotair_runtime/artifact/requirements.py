"""Whether this node has what an artifact needs; asked before its weights are read."""

import functools
import re

import torch

from ..devices import Device
from ..errors import RequirementError
from ..format.schema import Program

_SATURATING = ("aten::_int_mm", "air::grouped_int_mm", "air::quant_matmul")
_DIGITS = re.compile(r"[0-9]{1,9}")


def check_requirements(program: Program, device: Device, where: str) -> None:
    """Raises RequirementError where this node's torch or vendor package is too old, or the device is another.

    The CPU may run what was built for other devices, for those who ask for it: that is how a build proves it.
    """
    check_torch(program, where)
    if device.is_host:
        check_int8(program, where)
        return  # it runs any program that it has the ops for, slowly: the build's own proof does
    if device.kind != program.requirements.device:
        raise RequirementError(
            "the artifact was built for another device",
            where=where,
            expected=_shown(program.requirements.device),
            got=device.kind,
            fix=f"set target.device to {device.kind} in the recipe and build again",
        )
    check_vendor(program, device, where)
    check_soc(program, device, where)


def check_torch(program: Program, where: str) -> None:
    """Raises RequirementError where this node's torch is too old."""
    _at_least("torch", torch.__version__, program.requirements.torch_min, where)


def check_vendor(program: Program, device: Device, where: str) -> None:
    """Raises RequirementError where the vendor's package is too old."""
    if program.requirements.vendor_min:
        _at_least(f"package for {device.kind}", device.vendor_version, program.requirements.vendor_min, where)


def check_soc(program: Program, device: Device, where: str) -> None:
    """Raises RequirementError where the device's name begins otherwise."""
    need = program.requirements
    if not device.name.startswith(need.soc):
        raise RequirementError(
            "the artifact was built for another SoC",
            where=where,
            got=device.name or "a device without a name",
            expected=f"a device whose name begins with {_shown(need.soc)}",
            fix="set target.soc in the recipe and build again",
        )


def needs_exact_int8(program: Program) -> bool:
    """Whether it multiplies matrices of int8 with an op that some processors saturate in."""
    return any(op.name.partition(".")[0] in _SATURATING for op in program.ops)


def check_int8(program: Program, where: str) -> None:
    """Raises RequirementError where this processor would give other numbers."""
    if needs_exact_int8(program) and not _sums_int8_exactly():
        raise RequirementError(
            "this processor sums products of int8 in 16 bits, and what does not fit is cut off",
            where=where,
            expected="a processor with VNNI (AVX512_VNNI, AVX_VNNI), for int8_dynamic and int8_static of quantize",
            got=torch.backends.cpu.get_cpu_capability(),
            fix="build without quantize, or for another node",
        )


@functools.cache
def _sums_int8_exactly() -> bool:
    """Tried, because torch's kernel for products of int8 says nothing where it saturates."""
    most = torch.full((16, 64), 127, dtype=torch.int8, device="cpu")
    return bool((torch._int_mm(most, most.t()) == 64 * 127 * 127).all())


def _at_least(what: str, have: str, least: str, where: str) -> None:
    if _version(have) < _version(least):
        raise RequirementError(
            f"this node's {what} is too old", where=where, expected=f"{_shown(least)} or newer", got=have or "none"
        )


def _version(text: str) -> tuple[int, ...]:
    """The numbers of a version: "2.13.0+cpu" is (2, 13), as "2.13" is."""
    numbers = []
    for part in text.split("+")[0].split("."):
        digits = _DIGITS.match(part)
        if digits is None:
            break
        numbers.append(int(digits[0]))
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _shown(text: str) -> str:
    """So much of what an artifact says, with nothing that a terminal obeys."""
    return ascii(text)[1:-1][:80]
