"""`torch.ops.air`: how a pass written for TorchAir says on which stream nodes run, and what waits for what.

The schemas are TorchAir's, and so is the rule that what is defined already is not defined again: importing the real
torchair before or after does not clash. On the host none of them does anything: the program's order is a legal one.
"""

import torch

_SCHEMAS = {
    "scope_enter": "(str[] keys, str[] values, bool need_execute=False) -> ()",
    "scope_exit": "(bool need_execute=False) -> ()",
    "record": "(*, Device? device=None) -> Tensor",
    "wait": "(Tensor[] x) -> ()",
    "tagged_event_record": "(str tag, bool created_inside=False) -> ()",
    "tagged_event_wait": "(str tag, bool created_inside=False) -> ()",
    "record_tagged_stream": "(Tensor input, str tag) -> ()",
}
_library = torch.library.Library("air", "FRAGMENT")


def _nothing(*_args, **_kwargs) -> None:
    """The host runs in the program's order."""


def _record(*, device: torch.device | None = None) -> torch.Tensor:
    return torch.empty(0, device=device)


def define() -> None:
    """Define what nobody has defined yet."""
    for name, schema in _SCHEMAS.items():
        if hasattr(torch.ops.air, name):
            continue
        _library.define(name + schema)
        kernel = _record if name == "record" else _nothing
        _library.impl(name, kernel, "BackendSelect" if name in ("record", "wait") else "CompositeExplicitAutograd")
        _library.impl(name, _record_shape if name == "record" else _nothing, "Meta")
        torch.fx.node.has_side_effect(getattr(torch.ops.air, name).default)


def is_marker(op: object) -> bool:
    """Whether an op is one of these, and not one that computes."""
    return isinstance(op, torch._ops.OpOverload) and op.namespace == "air" and op._schema.name[5:] in _SCHEMAS


def _record_shape(*, device: torch.device | None = None) -> torch.Tensor:
    return torch.empty(0, device="meta")


define()
