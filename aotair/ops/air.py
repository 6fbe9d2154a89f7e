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
    "record_tagged_stream_": "(Tensor(a!) input, str tag) -> ()",
    "wait_tensor": "(Tensor self, Tensor dependency) -> Tensor",
}
_library = torch.library.Library("air", "FRAGMENT")


def _nothing(*_args: object, **_kwargs: object) -> None:
    """The host runs in the program's order."""


def _record(*, device: torch.device | None = None) -> torch.Tensor:
    return torch.empty(0, device=device)


def _wait_tensor(self: torch.Tensor, dependency: torch.Tensor) -> torch.Tensor:
    return self.clone()


_KERNELS = {"record": _record, "wait_tensor": _wait_tensor}
_SHAPES = {
    "record": lambda *, device=None: torch.empty(0, device="meta"),
    "wait_tensor": lambda self, dependency: torch.empty_strided(
        self.shape, self.stride(), dtype=self.dtype, device="meta"
    ),
}


def define() -> None:
    """Define what nobody has defined yet."""
    for name, schema in _SCHEMAS.items():
        if hasattr(torch.ops.air, name):
            continue
        _library.define(name + schema)
        key = "BackendSelect" if name in ("record", "wait") else "CompositeExplicitAutograd"
        _library.impl(name, _KERNELS.get(name, _nothing), key)
        _library.impl(name, _SHAPES.get(name, _nothing), "Meta")
        if name == "record_tagged_stream_":  # it writes nothing: the memory it speaks of is the tensor's own
            _library.impl(name, lambda input, tag: torch.ops.air.record_tagged_stream(input, tag), "Functionalize")
        torch.fx.node.has_side_effect(getattr(torch.ops.air, name).default)


def is_marker(op: object) -> bool:
    """Whether an op is one of these, and not one that computes."""
    return isinstance(op, torch._ops.OpOverload) and op.namespace == "air" and op._schema.name[5:] in _SCHEMAS


def in_plain_words(graph: torch.fx.Graph) -> None:
    """Say `wait_tensor` as a wait, and the tensor itself; `record_tagged_stream_` as what writes nothing."""
    air = torch.ops.air
    for node in graph.find_nodes(op="call_function", target=air.record_tagged_stream_.default):
        node.target = air.record_tagged_stream.default
    for node in graph.find_nodes(op="call_function", target=air.wait_tensor.default):
        tensor, dependency = node.args
        if dependency.op != "placeholder":  # inputs are there
            with graph.inserting_before(node):
                wait = graph.call_function(air.wait.default, ([dependency],))
            wait.meta = {key: value for key, value in node.meta.items() if key != "val"}
        node.replace_all_uses_with(tensor)
        graph.erase_node(node)


define()
