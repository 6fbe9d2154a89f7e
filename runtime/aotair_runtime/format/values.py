"""What an argument of an instruction stands for, when its op is called."""

from collections.abc import Callable, Mapping, Sequence

import torch

from .schema import Arg, DeviceArg, DTypeArg, GroupArg, HostArg, LayoutArg, MemoryFormatArg, TensorArg
from .torch_names import dtype, layout, memory_format

Lists = Mapping[int, Sequence[int]]  # by input: the list that instructions take as a host argument


def argument_value(
    arg: Arg,
    tensor: Callable[[int], torch.Tensor],
    device: torch.device,
    lists: Lists,
    groups: Sequence[str] = (),
) -> object:
    """The argument on `device`; `tensor` gives those of the bucket by number. `groups`: by axis of the mesh, the name
    of the group that this rank has joined; none where nobody will be met."""
    if isinstance(arg, TensorArg):
        return tensor(arg.index)
    if isinstance(arg, tuple):
        return [argument_value(item, tensor, device, lists, groups) for item in arg]
    if isinstance(arg, HostArg):
        return list(lists[arg.input])
    if isinstance(arg, GroupArg):
        return groups[arg.axis] if groups else ""
    if isinstance(arg, DeviceArg):
        return device
    if isinstance(arg, DTypeArg):
        return dtype(arg.name)
    if isinstance(arg, MemoryFormatArg):
        return memory_format(arg.name)
    return layout(arg.name) if isinstance(arg, LayoutArg) else arg
