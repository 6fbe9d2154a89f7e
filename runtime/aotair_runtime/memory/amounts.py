"""Amounts of memory, as numbers and as people write them: 24GiB, 90%."""

import re

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def read_bytes(value: object) -> object:
    """A number of bytes of a text with a unit, as 24GiB; anything else as it is. Raises ValueError."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"expected a number of bytes, or one with a unit ({', '.join(_UNITS)[2:]}): {value!r}")
    return int(float(match[1]) * _UNITS[match[2]])


def read_budget(value: object) -> object:
    """Bytes, or a share of the device: a fraction, or a percentage as text. Raises ValueError."""
    if isinstance(value, str) and re.fullmatch(r"\s*\d+(\.\d+)?\s*%\s*", value):
        value = float(value.strip()[:-1]) / 100
    value = read_bytes(value)
    if isinstance(value, float) and not 0 < value <= 1:
        raise ValueError(f"a share of the device is more than 0 and at most 1, not {value}")
    return value
