"""What one process of the device benchmarks does: `python -m benchmarks.device_node WHAT DEVICE LAYERS ARTIFACT`.

Prints one line of JSON last. Times in seconds unless a name says otherwise.
"""

import contextlib
import importlib.util
import json
import random
import sys
import threading
import time
from pathlib import Path

import torch

from .common import host_microseconds
from .decoder import BATCHES, call_inputs, make

DEVICE = sys.argv[2]
CALLS = 2000


def api():
    return getattr(torch, DEVICE)


def device() -> torch.device:
    return torch.device("cpu") if DEVICE == "cpu" else torch.device(DEVICE, 0)


def suppressed():
    """No work on the device, so that the host's time is left; on a real one a small model costs next to nothing."""
    if importlib.util.find_spec("simcann") is None:
        return contextlib.nullcontext()
    import simnpu

    return simnpu.null_device()


def reserved_in_pools() -> int:
    return sum(s["total_size"] for s in api().memory_snapshot() if tuple(s["segment_pool_id"]) != (0, 0))


def microseconds(call, calls: int = CALLS) -> float:
    return host_microseconds(call, api().synchronize, calls)


def all_inputs(layers: int) -> list[list[torch.Tensor]]:
    return [call_inputs(layers, batch, device()) for batch in BATCHES]


def check(layers: int, call) -> float:
    """The largest difference from the original model, on the host, over three tokens: of answers and caches."""
    original = make(layers)
    mine, theirs = call_inputs(layers, 4, device()), call_inputs(layers, 4, torch.device("cpu"))
    worst = 0.0
    with torch.no_grad():
        for position in (0, 1, 2):
            mine[1].fill_(position)
            theirs[1].fill_(position)
            pairs = [(call(mine), original(*theirs)), *zip(mine[2:], theirs[2:])]
            errors = [(got.cpu() - want).abs().max().item() for got, want in pairs]
            worst = max(worst, *(error if error == error else float("inf") for error in errors))
    return worst


# ---- aotair ---------------------------------------------------------------------------------------------------------


def aotair_start(layers: int, path: str) -> dict:
    import aotair

    inputs = all_inputs(layers)
    api().synchronize()
    start = time.perf_counter()
    model = aotair.load(path, device=DEVICE)
    loaded = time.perf_counter()
    for given in reversed(inputs):
        model(*given)
    api().synchronize()
    done = time.perf_counter()
    memory = model.memory()
    found = {"seconds": done - start, "load": loaded - start, "reserved": memory.pools[0].reserved}
    return found | {"arena": memory.arena, "error": check(layers, lambda given: model(*given))}


def aotair_alone(layers: int, path: str) -> dict:
    import aotair

    model = aotair.load(path, device=DEVICE, capture="lazy")
    model(*call_inputs(layers, max(BATCHES), device()))
    return {"reserved": model.memory().pools[0].reserved}


def aotair_host(layers: int, path: str) -> dict:
    import aotair

    model = aotair.load(path, device=DEVICE)
    inputs = call_inputs(layers, 4, device())
    model(*inputs)
    viewed = inputs[:2] + [None] * (2 * layers)

    def with_views() -> None:
        viewed[2:] = [cache.view(cache.shape) for cache in inputs[2:]]
        model(*viewed)

    with suppressed():
        same = microseconds(lambda: model(*inputs))
        making = microseconds(lambda: [cache.view(cache.shape) for cache in inputs[2:]])
        fresh = microseconds(with_views) - making
    return {"us": same, "fresh_us": fresh}


def floor(_layers: int, _path: str) -> dict:
    """One foreach copy of three tensors and a bare replay."""
    graph_class = {"npu": "NPUGraph", "cuda": "CUDAGraph"}[DEVICE]
    x, graph = torch.ones(8, device=device()), getattr(api(), graph_class)()
    with api().graph(graph):
        x + 1
    targets, sources = ([torch.ones(8, device=device()) for _ in range(3)] for _ in range(2))

    def call() -> None:
        torch._foreach_copy_(targets, sources)
        graph.replay()

    with suppressed(), torch.inference_mode():
        return {"us": microseconds(call)}


def aotair_threads(_layers: int, path: str) -> dict:
    """10,000 replays over random buckets from four threads; the answers are compared with each bucket's first."""
    import aotair

    model = aotair.load(path, device=DEVICE, enable_output_clone=True)
    names = [spec.name for spec in model.program.entry_points[0].inputs]
    sizes = [(batch, seq) for batch in (1, 2, 3, 4) for seq in (3, 4, 7, 8, 12, 16)]
    calls = []
    for batch, seq in sizes:
        ids = (torch.arange(batch * seq, device="cpu").view(batch, seq) * 7) % 50
        calls.append([ids.to(device()), torch.ones_like(ids).to(device())][: len(names)])
    wants = [model(*call).cpu() for call in calls]
    api().synchronize()
    before = api().memory_reserved()
    wrong, lock = [], threading.Lock()

    def work(seed: int) -> None:
        chooser = random.Random(seed)
        for _ in range(2500):
            number = chooser.randrange(len(calls))
            if not torch.equal(model(*calls[number]).cpu(), wants[number]):
                with lock:
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    api().synchronize()
    return {"wrong": len(wrong), "grown": api().memory_reserved() - before, "calls": model.stats().calls - len(calls)}


# ---- memory ---------------------------------------------------------------------------------------------------------


def _memory(layers: int, path: str, batches: list[int]) -> dict:
    """Promised and taken bytes after a call of each of these buckets; the caches are the caller's."""
    import aotair

    on_device = DEVICE != "cpu"
    calls = [call_inputs(layers, batch, device()) for batch in batches]
    before = api().memory_reserved() if on_device else 0
    model = aotair.load(path, device=DEVICE)
    for given in calls:
        model(*given)
    most = api().max_memory_reserved() - before if on_device else 0
    memory = model.memory()
    found = {"arena": memory.arena, "allocated": memory.arena_allocated, "addressed": memory.arena_addressed}
    return found | {"pool": memory.pools[0].reserved, "peak": model.promise.peak, "most": most}


def memory_all(layers: int, path: str) -> dict:
    from aotair_runtime.artifact.open import read_program

    batches = [bucket.sizes[0] for bucket in read_program(Path(path)).entry_points[0].buckets]
    return _memory(layers, path, batches) | {"eager": _eager(layers, max(batches)) if DEVICE != "cpu" else 0}


def memory_largest(layers: int, path: str) -> dict:
    from aotair_runtime.artifact.open import read_program

    batches = [bucket.sizes[0] for bucket in read_program(Path(path)).entry_points[0].buckets]
    return _memory(layers, path, [max(batches)])


def _eager(layers: int, batch: int) -> int:
    """What the original model's own run takes of the allocator, beside its weights and caches."""
    model, given = make(layers).to(device()), call_inputs(layers, batch, device())
    api().synchronize()
    api().empty_cache()
    api().reset_peak_memory_stats()
    before = api().memory_allocated()
    with torch.no_grad():
        model(*given)
    return api().max_memory_allocated() - before


# ---- stock TorchAir -------------------------------------------------------------------------------------------------


def _torchair(layers: int):
    import torch_npu.dynamo.torchair as torchair

    config = torchair.CompilerConfig()
    config.mode = "reduce-overhead"
    backend = torchair.get_npu_backend(compiler_config=config)
    model = make(layers).to(device())
    torch._dynamo.config.cache_size_limit = 64
    return torch.compile(model, backend=backend, dynamic=False, fullgraph=True)


def torchair_start(layers: int, _path: str) -> dict:
    compiled, inputs = _torchair(layers), all_inputs(layers)
    api().synchronize()
    start = time.perf_counter()
    with torch.no_grad():
        for given in reversed(inputs):
            for tensor in given:
                torch._dynamo.mark_static(tensor)
            compiled(*given)
        api().synchronize()
        done = time.perf_counter()
        reserved = reserved_in_pools()
        return {"seconds": done - start, "reserved": reserved, "error": check(layers, lambda given: compiled(*given))}


def torchair_host(layers: int, _path: str) -> dict:
    compiled, inputs = _torchair(layers), call_inputs(layers, 4, device())
    with torch.no_grad():
        for _ in range(3):
            compiled(*inputs)
        with suppressed():
            return {"us": microseconds(lambda: compiled(*inputs), 500)}


def main() -> None:
    if importlib.util.find_spec("simcann"):
        import simnpu

        simnpu.install()
    what, _, layers, path = sys.argv[1:5]
    print(json.dumps(globals()[what](int(layers), path)))


if __name__ == "__main__":
    main()
