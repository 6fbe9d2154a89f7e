"""How does a test steer the simulated device? Wrappers around the sim_* functions of the simulated CANN."""

import atexit
import contextlib
import ctypes
from collections.abc import Iterator

cann = ctypes.CDLL("libascendcl.so")

RUNNER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64)
RAN, QUEUED = 0, 1
_SIZE = ctypes.c_size_t
_COUNTERS = (
    "sim_live_streams", "sim_live_events", "sim_live_graphs", "sim_live_bytes", "sim_peak_bytes", "sim_memory",
    "sim_launches", "sim_pending", "sim_reserved_bytes", "sim_communicators", "sim_collectives", "sim_collective_bytes",
)  # fmt: skip
for _name in _COUNTERS:
    getattr(cann, _name).argtypes, getattr(cann, _name).restype = [], _SIZE
cann.sim_launch.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
cann.sim_defers.argtypes = [ctypes.c_void_p]
cann.sim_take_released.argtypes, cann.sim_take_released.restype = [ctypes.POINTER(ctypes.c_uint64), _SIZE], _SIZE
cann.sim_set_runner.argtypes = [RUNNER]
cann.sim_set_interpreter.argtypes = [ctypes.c_void_p] * 3
cann.sim_set_null.argtypes = [ctypes.c_int]
cann.sim_set_schedule.argtypes = [ctypes.c_uint64]
cann.sim_set_memory.argtypes = [_SIZE]
cann.sim_set_limits.argtypes = [_SIZE, _SIZE]
cann.sim_fail.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_long]
cann.sim_communicator.argtypes, cann.sim_communicator.restype = [ctypes.c_char_p], ctypes.c_void_p
for _name, _numbers in (("HcclAllReduce", 2), ("HcclAllGather", 1), ("HcclReduceScatter", 2)):
    _kinds = [ctypes.c_void_p] * 2 + [ctypes.c_uint64] + [ctypes.c_int] * _numbers + [ctypes.c_void_p] * 2
    getattr(cann, _name).argtypes = _kinds
cann.HcclGetRankSize.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint32)]
cann.sim_set_timeout.argtypes, cann.sim_timeout.restype = [ctypes.c_double], ctypes.c_double
atexit.register(cann.sim_finish)  # what still waits for other ranks runs kernels, which are Python

MOST_STREAMS, MOST_EVENTS = 2048, 65536  # a device's, and the simulator's at its start
CALLS_THAT_CAN_FAIL = frozenset({
    "aclmdlRICaptureBegin", "aclmdlRICaptureEnd", "aclmdlRIExecuteAsync", "aclrtMalloc", "aclrtCreateStream",
    "aclrtCreateEvent", "sim_launch",
    "HcclCommInitRootInfoConfig", "HcclGetCommAsyncError", "HcclAllReduce", "HcclReduce", "HcclBroadcast",
    "HcclAllGather", "HcclReduceScatter", "HcclScatter", "HcclAlltoAll", "HcclAlltoAllV", "HcclSend", "HcclRecv",
})  # fmt: skip
_null = False


def live_streams() -> int:
    """Streams that exist, those that graphs hold among them."""
    return cann.sim_live_streams()


def live_events() -> int:
    """Events that exist, those that graphs hold among them."""
    return cann.sim_live_events()


def live_graphs() -> int:
    """Graphs begun and not destroyed."""
    return cann.sim_live_graphs()


def live_bytes() -> int:
    """Device memory that the allocator holds: what it calls reserved."""
    return cann.sim_live_bytes()


def peak_bytes() -> int:
    """The most that `live_bytes` has been since the start or `reset_peak`."""
    return cann.sim_peak_bytes()


def reset_peak() -> None:
    """Let `peak_bytes` begin again from what is live now."""
    cann.sim_reset_peak()


def launches() -> int:
    """Kernels that have run; replayed ones count each time."""
    return cann.sim_launches()


def pending() -> int:
    """Tasks that wait behind an event nobody has recorded."""
    return cann.sim_pending()


def reserved_bytes() -> int:
    """Device memory that communicators keep for buffers: it counts against `memory_limit`, but not in `live_bytes`."""
    return cann.sim_reserved_bytes()


def communicators() -> int:
    """Communicators of HCCL that this rank has joined and not destroyed."""
    return cann.sim_communicators()


def collectives() -> int:
    """Calls of HCCL that have ended well on this rank, a batch of messages as one; replayed ones count each time."""
    return cann.sim_collectives()


def collective_bytes() -> int:
    """Bytes that this rank has given to others in them."""
    return cann.sim_collective_bytes()


def abandon() -> None:
    """Forget all blocked work, as resetting a device after a deadlock does."""
    cann.sim_abandon()


def is_null() -> bool:
    """Is the device one on which nothing takes time?"""
    return _null


@contextlib.contextmanager
def null_device() -> Iterator[None]:
    """Let kernels, copies and replays do nothing: the time that is left is the host's own. Results are garbage."""
    global _null
    before, _null = _null, True
    cann.sim_set_null(1)
    try:
        yield
    finally:
        _null = before
        cann.sim_set_null(int(before))


@contextlib.contextmanager
def schedule(seed: int) -> Iterator[None]:
    """Replay the streams of a graph in a random order that its events allow, drawn from `seed`; 0 is capture order."""
    cann.sim_set_schedule(seed)
    try:
        yield
    finally:
        cann.sim_set_schedule(0)


@contextlib.contextmanager
def rank_timeout(seconds: float) -> Iterator[None]:
    """Let this rank wait so long for others, in a call of HCCL and to join a communicator, before that is an error."""
    before = cann.sim_timeout()
    cann.sim_set_timeout(seconds)
    try:
        yield
    finally:
        cann.sim_set_timeout(before)


@contextlib.contextmanager
def memory_limit(total: int) -> Iterator[None]:
    """Give the device `total` bytes in all, counting those that are live already."""
    before = cann.sim_memory()
    cann.sim_set_memory(total)
    try:
        yield
    finally:
        cann.sim_set_memory(before)


@contextlib.contextmanager
def limits(streams: int = MOST_STREAMS, events: int = MOST_EVENTS) -> Iterator[None]:
    """Give the device so many streams and events in all, counting those that are live already."""
    cann.sim_set_limits(streams, events)
    try:
        yield
    finally:
        cann.sim_set_limits(MOST_STREAMS, MOST_EVENTS)


@contextlib.contextmanager
def fail_next(function: str, nth: int = 1, times: int = 1) -> Iterator[None]:
    """Let the nth next call of a runtime function fail, and those after it, `times` in all; see CALLS_THAT_CAN_FAIL."""
    if function not in CALLS_THAT_CAN_FAIL:
        raise ValueError(f"{function!r} cannot fail on demand; these can: {', '.join(sorted(CALLS_THAT_CAN_FAIL))}")
    if cann.sim_fail(function.encode(), nth, times):
        raise RuntimeError("too many failures are waiting to happen")
    try:
        yield
    finally:
        cann.sim_fail_never()
