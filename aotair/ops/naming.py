"""What code that names the NPU means on a machine without torch_npu: the host."""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_NPU = re.compile(r"npu(:\d+)?")


@contextlib.contextmanager
def host_as_npu() -> Iterator[None]:
    """Within: `device="npu"`, `torch.device("npu")`, `.to("npu")` and `.npu()` give what lies on the host.

    For the example inputs of fusion rules that were written beside a device. Where the name is known, as with torch_npu
    installed, nothing changes. It holds for this thread alone, but for `.npu`, which is an attribute of the classes.
    """
    if torch._C._get_privateuse1_backend_name() == "npu":
        yield
        return
    lacking: list[Any] = [kind for kind in (torch.Tensor, torch.nn.Module) if not hasattr(kind, "npu")]
    for kind in lacking:
        kind.npu = _stays
    try:
        with _Host():
            yield
    finally:
        for kind in lacking:
            del kind.npu


def _stays(self: object, device: object = None, non_blocking: bool = False) -> object:
    return self


class _Host(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if func is torch.device and any(_host(value) != value for value in (*args, *kwargs.values())):
            return torch.device("cpu")  # whatever its number is
        if not isinstance(func, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
            args = tuple(map(_host, args))
        return func(*args, **{name: _host(value) if name == "device" else value for name, value in kwargs.items()})


def _host(value: object) -> object:
    return "cpu" if isinstance(value, str) and _NPU.fullmatch(value) else value
