"""What does each rank do in the tests of collectives? Functions for `ranks.Ranks`; most give back what was wrong."""

import os
import time

import ranks
import simnpu
import torch
import torch.distributed as dist

F = torch.ops._c10d_functional
TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64)
REDUCTIONS = {
    "sum": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "prod": dist.ReduceOp.PRODUCT,
}


def _rank() -> int:
    return dist.get_rank()


def _size() -> int:
    return dist.get_world_size()


def _name() -> str:
    return dist.group.WORLD.group_name


def values(rank: int, count: int) -> torch.Tensor:
    """What a rank brings: small whole numbers, different on each rank and at each place."""
    return (torch.arange(count) * 3 + rank * 5) % 7 + 1.0


def _all(count: int) -> torch.Tensor:
    return torch.stack([values(rank, count) for rank in range(_size())])


def renew(store: str, rank: int, count: int) -> None:
    """Leave the process group, as it may be, and join another."""
    dist.destroy_process_group()
    ranks.join(store, rank, count)


# ---- each collective by values -----------------------------------------------------------------------------------
def _reduced(kind: str, count: int, dtype: torch.dtype) -> torch.Tensor:
    every = _all(count).to(dtype)
    result = every[0]
    for one in every[1:]:
        steps = {"sum": result + one, "prod": result * one, "max": torch.maximum(result, one)}
        result = steps[kind] if kind in steps else torch.minimum(result, one)
    return result


def reductions() -> list[str]:
    """all_reduce of every type and reduction the device has, in sizes that divide by nothing."""
    wrong = []
    for dtype in TYPES:
        for kind, reduction in REDUCTIONS.items():
            if kind == "prod" and dtype in (torch.int16, torch.bfloat16):
                continue
            x = values(_rank(), 37).to(dtype).npu()
            dist.all_reduce(x, op=reduction)
            if not torch.equal(x.cpu(), _reduced(kind, 37, dtype)):
                wrong.append(f"{kind} of {dtype}")
    return wrong


def average_and_bool() -> tuple[list[float], list[bool]]:
    """What torch_npu makes of other calls."""
    x, flags = torch.full((2,), float(_rank())).npu(), torch.tensor([_rank() == 1, False]).npu()
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    return x.cpu().tolist(), flags.cpu().tolist()


def _into(size: int, call) -> torch.Tensor:
    out = torch.zeros(size, device="npu")
    call(out)
    return out


def _message(x: torch.Tensor, from_rank: int, to_rank: int) -> torch.Tensor:
    out = torch.zeros_like(x)
    if _rank() == from_rank:
        dist.send(x, to_rank)
    elif _rank() == to_rank:
        dist.recv(out, from_rank)
    return out


def _ring(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    to, source = (_rank() + 1) % _size(), (_rank() - 1) % _size()
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, to), dist.P2POp(dist.irecv, out, source)]):
        work.wait()
    return out


def _uneven(x: torch.Tensor) -> torch.Tensor:
    """Rank r gets r + 1 values from each."""
    n, r = _size(), _rank()
    given, taken = list(range(1, n + 1)), [r + 1] * n
    return _into(sum(taken), lambda out: dist.all_to_all_single(out, x[: sum(given)], taken, given))


def _coalesced(x: torch.Tensor) -> torch.Tensor:
    first, second = x * 1, x * 2
    with dist._coalescing_manager(device=torch.device("npu:0"), async_ops=True) as manager:
        dist.all_reduce(first)
        dist.all_reduce(second)
    manager.wait()
    return first + second


def _in_place(x: torch.Tensor, call) -> torch.Tensor:
    copy = x * 1
    call(copy)
    return copy


class Expected:
    """What calls with `count` values on each rank give this rank; `count` divides by the number of ranks."""

    def __init__(self, count: int):
        self.count, self.size, self.rank = count, _size(), _rank()
        self.part = count // self.size
        self.every = _all(count)
        self.total = self.every.sum(0)
        self.mine = slice(self.rank * self.part, (self.rank + 1) * self.part)
        self.gathered = self.every.view(-1)
        self.exchanged = self.every.view(self.size, self.size, self.part)[:, self.rank].reshape(-1)


def sums(e: Expected) -> dict:
    """all_reduce, in each of the ways to call it."""
    group, c10d, boxed, opts = dist.group.WORLD, torch.ops.c10d, torch.classes.c10d.ReduceOp, dist.AllreduceOptions()
    backend = group._get_backend(torch.device("npu"))
    ways = {
        "all_reduce": dist.all_reduce,
        "all_reduce async": lambda y: dist.all_reduce(y, async_op=True).wait(),
        "ProcessGroup.allreduce": lambda y: group.allreduce([y], opts).wait(),
        "Backend.allreduce": lambda y: backend.allreduce([y], opts).wait(),
        "c10d.allreduce_": lambda y: c10d.allreduce_([y], group.boxed(), boxed(), None)[1].wait(),
    }
    return {name: (lambda x, way=way: _in_place(x, way), e.total) for name, way in ways.items()}


def gathers(e: Expected) -> dict:
    """all_gather and reduce_scatter."""
    group, whole = dist.group.WORLD, e.size * e.count
    return {
        "all_gather_into_tensor": (lambda x: _into(whole, lambda o: dist.all_gather_into_tensor(o, x)), e.gathered),
        "ProcessGroup._allgather_base": (
            lambda x: _into(whole, lambda o: group._allgather_base(o, x).wait()),
            e.gathered,
        ),
        "reduce_scatter_tensor": (lambda x: _into(e.part, lambda o: dist.reduce_scatter_tensor(o, x)), e.total[e.mine]),
        "ProcessGroup._reduce_scatter_base": (
            lambda x: _into(e.part, lambda o: group._reduce_scatter_base(o, x).wait()),
            e.total[e.mine],
        ),
    }


def rooted(e: Expected) -> dict:
    """What has a root: rank 1."""
    return {
        "broadcast": (lambda x: _in_place(x, lambda y: dist.broadcast(y, 1)), e.every[1]),
        "reduce": (lambda x: _in_place(x, lambda y: dist.reduce(y, 1)), e.total if e.rank == 1 else None),
        "scatter": (
            lambda x: _into(e.part, lambda o: dist.scatter(o, list(x.view(e.size, -1)) if e.rank == 1 else None, 1)),
            e.every[1][e.mine],
        ),
    }


def exchanges(e: Expected) -> dict:
    """What goes from one rank to another; and several calls as one."""
    start = e.rank * (e.rank + 1) // 2
    return {
        "all_to_all_single": (lambda x: _into(e.count, lambda o: dist.all_to_all_single(o, x)), e.exchanged),
        "all_to_all_single, uneven": (_uneven, e.every[:, start : start + e.rank + 1].reshape(-1)),
        "send and recv": (lambda x: _message(x, 0, 1), e.every[0] if e.rank == 1 else None),
        "batch_isend_irecv": (_ring, e.every[(e.rank - 1) % e.size]),
        "coalesced": (_coalesced, e.total * 3),
    }


def functional(e: Expected) -> dict:
    """Functional collectives."""
    n, name, part = e.size, _name(), e.part
    whole, piece = torch.zeros(n * e.count, device="npu"), torch.zeros(part, device="npu")

    def coalesced(x: torch.Tensor) -> torch.Tensor:
        return sum(F.wait_tensor(one) for one in F.all_reduce_coalesced([x, x * 2], "sum", name))

    ways = {
        "all_reduce": (lambda x: F.all_reduce(x, "sum", name), e.total),
        "all_reduce_": (lambda x: F.all_reduce_(x * 1, "sum", name), e.total),
        "all_gather_into_tensor": (lambda x: F.all_gather_into_tensor(x, n, name), e.gathered),
        "all_gather_into_tensor_out": (lambda x: F.all_gather_into_tensor_out(x, n, name, out=whole), e.gathered),
        "reduce_scatter_tensor": (lambda x: F.reduce_scatter_tensor(x, "sum", n, name), e.total[e.mine]),
        "reduce_scatter_tensor_out": (
            lambda x: F.reduce_scatter_tensor_out(x, "sum", n, name, out=piece),
            e.total[e.mine],
        ),
        "all_to_all_single": (lambda x: F.all_to_all_single(x, [part] * n, [part] * n, name), e.exchanged),
        "broadcast_": (lambda x: F.broadcast_(x * 1, 1, name), e.every[1]),
    }
    waited = {f"F.{name}": (lambda x, way=way: F.wait_tensor(way(x)) + 0, right) for name, (way, right) in ways.items()}
    return {**waited, "F.all_reduce_coalesced": (coalesced, e.total * 3)}


def calls(count: int) -> dict:
    """Name -> (a function of this rank's `count` values on the device, the right result; None: nothing to compare)."""
    expected = Expected(count)
    families = (sums, gathers, rooted, exchanges, functional)
    return {name: call for family in families for name, call in family(expected).items()}


def _fits(found: torch.Tensor, expected: torch.Tensor | None) -> bool:
    return expected is None or torch.equal(found.cpu(), expected)


def each_call() -> list[str]:
    """Every call once, outside of a capture."""
    count = 8 * _size()
    x = values(_rank(), count).npu()
    return [name for name, (call, expected) in calls(count).items() if not _fits(call(x), expected)]


# ---- in a captured graph -----------------------------------------------------------------------------------------
def _capture(function):
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        result = function()
    return graph, result


def each_call_captured() -> list[str]:
    """Every call in a graph of its own, replayed with new inputs, some in random orders."""
    count, wrong = 8 * _size(), []
    x = torch.zeros(count, device="npu")
    for name, (call, expected) in calls(count).items():
        call(x * 1)  # the communicators have to be there before
        graph, found = _capture(lambda call=call: call(x * 1))
        for seed in range(6):
            x.copy_(values(_rank(), count) * (seed + 1))
            with simnpu.schedule(seed):
                graph.replay()
            scaled = None if expected is None else expected * (seed + 1)
            if not _fits(found, scaled):
                wrong.append(f"{name}, seed {seed}")
    return wrong


def random_orders(seeds: int, joined: bool) -> int:
    """Wrong results of a graph in which a collective runs beside a product; without `joined` nothing waits for it."""
    x, side = torch.zeros(4, 4, device="npu"), torch.npu.Stream()

    def body():
        main = torch.npu.current_stream()
        y = x + 1
        work = dist.all_reduce(y, async_op=True)
        side.wait_stream(main)
        with torch.npu.stream(side):
            product = x @ x
        if joined:
            work.wait()
        result = y * 2
        work.wait()
        main.wait_stream(side)
        return result + product

    dist.all_reduce(x)
    graph, found = _capture(body)
    wrong = 0
    for seed in range(1, seeds + 1):
        inputs = [torch.full((4, 4), float(rank + seed % 9)) for rank in range(_size())]
        x.copy_(inputs[_rank()])
        with simnpu.schedule(seed * _size() + _rank()):  # ranks need not agree on their orders
            graph.replay()
        expected = 2 * (sum(inputs) + _size()) + inputs[_rank()] @ inputs[_rank()]
        wrong += not torch.equal(found.cpu(), expected)
    return wrong


def two_groups(seeds: int) -> int:
    """Wrong results where two groups' collectives are on two streams, captured in another order on odd ranks."""
    other = dist.new_group(list(range(_size())))
    x, y, side = torch.zeros(4, device="npu"), torch.zeros(4, device="npu"), torch.npu.Stream()
    dist.all_reduce(x)
    dist.all_reduce(y, group=other)

    def body():
        main = torch.npu.current_stream()
        a, b = x * 1, y * 1
        side.wait_stream(main)
        steps = [(main, lambda: dist.all_reduce(a)), (side, lambda: dist.all_reduce(b, group=other))]
        for stream, step in reversed(steps) if _rank() % 2 else steps:
            with torch.npu.stream(stream):
                step()
        main.wait_stream(side)
        return a + 10 * b

    graph, found = _capture(body)
    wrong = 0
    for seed in range(seeds):
        x.fill_(seed + _rank())
        y.fill_(seed - _rank())
        with simnpu.schedule(seed * _size() + _rank() if seed else 0):
            graph.replay()
        expected = sum(seed + r + 10 * (seed - r) for r in range(_size()))
        wrong += found.cpu().tolist() != [float(expected)] * 4
    return wrong


def first_call_in_a_capture() -> None:
    """It would have to make its communicator there."""
    group, x = dist.new_group(list(range(_size()))), torch.zeros(4, device="npu")
    try:
        _capture(lambda: dist.all_reduce(x, group=group))
    finally:
        torch.npu.set_stream(torch.npu.default_stream())


# ---- the host goes on --------------------------------------------------------------------------------------------
def host_goes_on() -> list[float]:
    """Rank 0 gets to its message only if its replay does not keep it; the others replay only after that message."""
    x = torch.full((2,), float(_rank())).npu()
    dist.all_reduce(x * 1)

    def body():
        y = x * 1
        for _ in range(3):
            dist.all_reduce(y)
        return y * 1

    graph, found = _capture(body)
    ready, host = torch.zeros(1), dist.new_group(list(range(_size())), backend="gloo")
    if _rank() == 0:
        graph.replay()
    dist.broadcast(ready, 0)
    if _rank() == 0:
        dist.barrier(group=host)  # of the hosts: meanwhile nobody calls the device here
        return found.cpu().tolist()
    graph.replay()
    torch.npu.synchronize()
    dist.barrier(group=host)
    return found.cpu().tolist()


def eager_goes_on() -> list[int]:
    """A product, a copy to the host, shapes that depend on values: all behind a collective whose last rank is late."""
    x = torch.full((4, 4), float(_rank())).npu()
    dist.all_reduce(x * 1)
    torch.npu.synchronize()
    if _rank() == _size() - 1:
        time.sleep(0.1)
    dist.all_reduce(x)
    y = x @ x - x[0, 0] * torch.ones(4, 4, device="npu")
    masked = y[y > 0]
    return [int(y.nonzero().shape[0]), len(masked), int(y.cpu()[0, 0])]


def counters() -> tuple[int, int, int, int]:
    """What two collectives of 4 and 8 float32 add up to; communicators; the bytes that these keep."""
    x, y = torch.zeros(4, device="npu"), torch.zeros(8, device="npu")
    dist.all_reduce(x)
    torch.npu.synchronize()
    before = simnpu.collectives(), simnpu.collective_bytes()
    dist.all_reduce(x)
    dist.all_reduce(y)
    torch.npu.synchronize()
    after = simnpu.collectives(), simnpu.collective_bytes()
    return after[0] - before[0], after[1] - before[1], simnpu.communicators(), simnpu.reserved_bytes()


# ---- what goes wrong ---------------------------------------------------------------------------------------------
def disagree(what: str) -> list[float]:
    """Rank 1 calls something else."""
    other = _rank() == 1
    x = torch.ones(12 if other and what == "count" else 4 * _size()).npu()
    if what == "operation" and other:
        dist.broadcast(x, 0)
    elif what == "root":
        dist.broadcast(x, int(other))
    elif what == "type" and other:
        dist.all_reduce(x.int())
    elif what == "reduction" and other:
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
    elif what == "parts":
        given, taken = [4] * _size(), [4] * _size()
        given[0] += 4 * other
        dist.all_to_all_single(torch.zeros(sum(taken)).npu(), torch.ones(sum(given)).npu(), taken, given)
    else:
        dist.all_reduce(x)
    return x.cpu().tolist()


def disagree_in_a_graph() -> list[float]:
    """Rank 1's graph has its two calls the other way round."""
    x = torch.ones(4, device="npu")
    dist.all_reduce(x)
    steps = [lambda: dist.all_reduce(x), lambda: dist.broadcast(x, 0)]

    def body():
        for step in reversed(steps) if _rank() == 1 else steps:
            step()

    graph, _ = _capture(body)
    graph.replay()
    return x.cpu().tolist()


def stay_away(who: int, limit: float) -> float:
    """One rank does not come; the seconds after which the others have an error, and what it says."""
    x = torch.ones(4).npu()
    dist.all_reduce(x)
    torch.npu.synchronize()
    started = time.monotonic()
    if _rank() == who:
        return 0.0
    with simnpu.rank_timeout(limit):
        dist.all_reduce(x)
        try:
            torch.npu.synchronize()
        except RuntimeError as error:
            raise RuntimeError(f"after {time.monotonic() - started:.1f} s: {error}") from None
    return -1.0


def come_late(who: int, limit: float) -> None:
    """One rank comes when the others have given it up."""
    x = torch.ones(4).npu()
    dist.all_reduce(x)
    torch.npu.synchronize()
    if _rank() == who:
        time.sleep(3 * limit)
    with simnpu.rank_timeout(limit):
        dist.all_reduce(x)
        torch.npu.synchronize()


def reduce_ones(times: int = 1) -> float:
    """The number of ranks, if all come."""
    x = torch.ones(3).npu()
    for _ in range(times):
        x.fill_(1)
        dist.all_reduce(x)
    return float(x.cpu()[0])


def replay_until_error(die_at: int) -> int:
    """Replays a graph with a collective; the last rank ends itself in the middle. Which replay failed here."""
    x = torch.ones(3, device="npu")
    dist.all_reduce(x)
    graph, _ = _capture(lambda: dist.all_reduce(x))
    for step in range(1000):
        if step == die_at and _rank() == _size() - 1:
            os.kill(os.getpid(), 9)
        graph.replay()
        torch.npu.synchronize()
    return -1


def refused_launch() -> float:
    """A launch that fails leaves nothing behind, where all ranks see it fail."""
    x = torch.ones(3, device="npu")
    with simnpu.fail_next("HcclAllReduce"):
        try:
            dist.all_reduce(x)
        except RuntimeError:
            return reduce_ones()
    return -1.0


def no_memory_for_buffers() -> None:
    """A new group's communicator takes its buffers from the device."""
    group, x = dist.new_group(list(range(_size()))), torch.zeros(4, device="npu")
    with simnpu.memory_limit(simnpu.live_bytes() + simnpu.reserved_bytes() + (100 << 20)):
        dist.all_reduce(x, group=group)


def unaligned_list() -> None:
    """all_gather into a list whose tensors are no multiple of 32 bytes: torch_npu pads them by a kernel of its own."""
    dist.all_gather([torch.zeros(3, device="npu") for _ in range(_size())], torch.ones(3, device="npu"))


def messages_differ() -> None:
    """Rank 1 expects more than rank 0 sends, in a batch, which is sent by the group's own communicator."""
    x = torch.ones(8 if _rank() == 1 else 4, device="npu")
    operations = {0: [dist.P2POp(dist.isend, x, 1)], 1: [dist.P2POp(dist.irecv, x, 0)]}.get(_rank(), [])
    dist.all_reduce(torch.ones(4, device="npu"))
    for work in dist.batch_isend_irecv(operations) if operations else []:
        work.wait()
    torch.npu.synchronize()


def kernel_fails_on(rank: int) -> None:
    """One rank's replay ends in the middle of a collective, because a kernel beside it fails."""
    x, side = torch.ones(4, device="npu"), torch.npu.Stream()
    dist.all_reduce(x)
    host = dist.new_group(list(range(_size())), backend="gloo")

    def fail() -> None:
        if _rank() == rank:
            raise ValueError("planned")

    def body():
        main = torch.npu.current_stream()
        work = dist.all_reduce(x, async_op=True)
        side.wait_stream(main)
        with torch.npu.stream(side):
            simnpu.launch(fail)
        main.wait_stream(side)
        work.wait()

    graph, _ = _capture(body)
    if _rank() == rank:
        graph.replay()  # alone: its collective has begun, and cannot end before the kernel fails
    dist.barrier(group=host)
    if _rank() != rank:
        graph.replay()
    try:
        torch.npu.synchronize()
    finally:
        simnpu.take_failure()


def graph_outlives_its_group() -> None:
    """Its communicator is gone; the error says so, and spoils nothing else."""
    group, x = dist.new_group(list(range(_size()))), torch.ones(4, device="npu")
    dist.all_reduce(x, group=group)
    graph, _ = _capture(lambda: dist.all_reduce(x, group=group))
    dist.destroy_process_group(group)
    graph.replay()
    torch.npu.synchronize()


def reduce_without_device() -> None:
    """A collective and the replay of one, on one rank alone."""
    x = torch.ones(4, device="npu")
    graph, _ = _capture(lambda: dist.all_reduce(x))
    with simnpu.null_device():
        dist.all_reduce(x)
        graph.replay()
        torch.npu.synchronize()
