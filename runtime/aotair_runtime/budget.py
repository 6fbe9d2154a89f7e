"""Whether the graphs that a load wants to capture fit what the device, and the caller, allow."""

from collections.abc import Iterable
from dataclasses import fields

from .devices import Device, Limits, Usage
from .errors import BudgetError
from .schema import Bucket


def cost(bucket: Bucket) -> Usage:
    """What one capture of a bucket takes until it is reset."""
    return Usage(1, bucket.streams, bucket.events)


def check_budget(device: Device, wanted: Iterable[Usage], limits: Limits, where: str) -> None:
    """Raises BudgetError where the captures `wanted`, with those alive on the device, are more than it has or more
    than `limits` allows."""
    wanted = list(wanted)
    for name in (field.name for field in fields(Limits)):
        need, used = sum(getattr(item, name) for item in wanted), getattr(device.usage, name)
        for whose, limit in ((f"{device.kind} has", device.limits), ("limits= allows", limits)):
            most = getattr(limit, name)
            if most is not None and used + need > most:
                raise BudgetError(
                    f"the graphs would take more {name} than {whose}", where=where, expected=f"at most {most} {name}",
                    got=f"{need} wanted, {used} in use by this process",
                    fix='capture fewer buckets (capture=[…] or "lazy"), keep fewer graphs (kept_graphs=1), '
                    "or build with fewer buckets",
                )  # fmt: skip
