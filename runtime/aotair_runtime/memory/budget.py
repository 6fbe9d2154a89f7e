"""Whether what a load wants fits what the device, and the caller, allow: graphs, streams, events and memory."""

from collections.abc import Iterable
from dataclasses import fields

from ..devices import Device, Limits, Usage
from ..errors import BudgetError, OutOfMemoryError
from ..format.schema import Bucket, Program, Requirements
from .promise import Promise, indented, refuse_beyond


def cost(bucket: Bucket) -> Usage:
    """What one capture of a bucket takes until it is reset."""
    return Usage(1, bucket.streams, bucket.events + bucket.updated)


def pool_cost(device: Device, program: Program) -> Usage:
    """What one pool takes beside its captures: two more graphs where host arguments are replaced."""
    updates = device.concurrent and any(bucket.updated for e in program.entry_points for bucket in e.buckets)
    price = device.space_cost
    return price + price + price if updates else price


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
                    f"the graphs would take more {name} than {whose}",
                    where=where,
                    expected=f"at most {most} {name}",
                    got=f"{need} wanted, {used} in use by this process",
                    fix='capture fewer buckets (capture=[…] or "lazy"), keep fewer graphs (kept_graphs=1), '
                    "or build with fewer buckets",
                )


def check_memory(device: Device, promised: Promise, need: Requirements, given: int | float | None, where: str) -> None:
    """Raises MemoryBudgetError where more is promised than the budget, the one `given` or else the artifact's, or than
    the device has left."""
    budget, whose = given, "memory_budget="
    if budget is None:
        budget, whose = need.memory_budget or need.memory_share or None, "the recipe's memory_budget"
    if isinstance(budget, float):
        whose, budget = f"{whose}, {budget:.0%} of {device.total():,} bytes", int(budget * device.total())
    if budget is not None:
        refuse_beyond(promised, budget, whose, where)
    free = device.free()
    if free is not None:
        refuse_beyond(promised, free, f"what the {device.kind} has left", where)


def raise_out_of_memory(error: Exception, device: Device, promised: Promise, where: str) -> None:
    """Raises OutOfMemoryError, with the table of what was promised, where `error` says that memory could not be had;
    what the failed calls held is let go, though the error is kept."""
    cause = error.__cause__ or error
    if isinstance(error, OutOfMemoryError) or not device.is_out_of_memory(cause):
        return
    error.__traceback__ = cause.__traceback__ = None  # their frames hold what was allocated
    device.trim()
    raise OutOfMemoryError(
        "the device ran out of memory; everything taken was given back",
        where=getattr(error, "where", "") or where,
        expected=f"{promised.peak:,} bytes\n{indented(promised)}",
        got=str(cause).splitlines()[0],
        fix="end what else uses the device, capture fewer buckets, or build with fewer or smaller ones",
    ) from cause
