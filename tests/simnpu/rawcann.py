"""How does a test call the runtime itself, where torch_npu offers too few streams or hides an error code?"""

import ctypes

from simcann import cann

_HANDLE = ctypes.c_void_p
for _name in ("aclrtRecordEvent", "aclrtStreamWaitEvent", "aclmdlRIExecuteAsync", "aclrtResetEvent"):
    getattr(cann, _name).argtypes = [_HANDLE, _HANDLE]
for _name in ("aclrtDestroyStream", "aclrtDestroyEvent", "aclmdlRIDestroy", "aclrtSynchronizeStream", "aclrtFree"):
    getattr(cann, _name).argtypes = [_HANDLE]
cann.aclmdlRICaptureBegin.argtypes = [_HANDLE, ctypes.c_int]
cann.aclmdlRICaptureEnd.argtypes = [_HANDLE, ctypes.POINTER(_HANDLE)]
cann.aclrtMalloc.argtypes = [ctypes.POINTER(_HANDLE), ctypes.c_size_t, ctypes.c_int]


class Refused(Exception):
    """The runtime answered with an error code."""

    def __init__(self, code: int):
        super().__init__(code)
        self.code = code


def check(code: int) -> None:
    """Raise for an error code."""
    if code:
        raise Refused(code)


def create_stream() -> int:
    """A new stream's handle."""
    handle = _HANDLE()
    check(cann.aclrtCreateStream(ctypes.byref(handle)))
    return handle.value


def create_event(flags: int = 0) -> int:
    """A new event's handle."""
    handle = _HANDLE()
    check(cann.aclrtCreateEventExWithFlag(ctypes.byref(handle), flags))
    return handle.value


def malloc(size: int) -> int:
    """The address of new device memory."""
    address = _HANDLE()
    check(cann.aclrtMalloc(ctypes.byref(address), size, 0))
    return address.value


def free(address: int) -> None:
    """Give device memory back."""
    check(cann.aclrtFree(address))


def record(event: int, stream: int) -> None:
    """Record an event."""
    check(cann.aclrtRecordEvent(event, stream))


def wait(stream: int, event: int) -> None:
    """Let a stream wait for an event."""
    check(cann.aclrtStreamWaitEvent(stream, event))


def synchronize(stream: int) -> None:
    """Wait for a stream."""
    check(cann.aclrtSynchronizeStream(stream))


def begin(stream: int, mode: int = 0) -> None:
    """Begin a capture."""
    check(cann.aclmdlRICaptureBegin(stream, mode))


def end(stream: int) -> int:
    """End a capture: the graph's handle."""
    graph = _HANDLE()
    check(cann.aclmdlRICaptureEnd(stream, ctypes.byref(graph)))
    return graph.value


def execute(graph: int, stream: int) -> None:
    """Replay a graph."""
    check(cann.aclmdlRIExecuteAsync(graph, stream))


def destroy(graph: int | None, streams: list[int], events: list[int]) -> None:
    """Give all of it back."""
    if graph is not None:
        check(cann.aclmdlRIDestroy(graph))
    for stream in streams:
        check(cann.aclrtDestroyStream(stream))
    for event in events:
        check(cann.aclrtDestroyEvent(event))
