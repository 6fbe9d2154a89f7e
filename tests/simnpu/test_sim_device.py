"""What does torch.npu offer a runtime here, and is the environment that run.py makes enough?"""

import os
import pathlib
import subprocess
import sys
import threading
import time

import build
import run
import simkernels
import simnpu
import torch
import torch_npu

SITE = pathlib.Path(torch_npu.__file__).parents[1]


def test_device_describes_itself():
    assert torch.npu.device_count() == 1 and torch.npu.is_available()
    assert torch.npu.get_device_name() == os.environ.get("SIMNPU_SOC", "Ascend910B1")
    assert torch.npu.current_device() == 0
    assert torch.npu.memory_stats()["reserved_bytes.all.current"] == torch.npu.memory_reserved()
    assert torch.npu.memory_allocated() <= torch.npu.memory_reserved()


def test_streams_are_a_round_of_32():
    first = [torch.npu.Stream() for _ in range(32)]
    again = [torch.npu.Stream() for _ in range(32)]
    assert len({s.npu_stream for s in first}) == 32 and {s.npu_stream for s in again} == {s.npu_stream for s in first}


def test_current_stream_follows_the_context():
    side, default = torch.npu.Stream(), torch.npu.current_stream()
    with torch.npu.stream(side):
        assert torch.npu.current_stream() == side
        x = torch.ones(4, device="npu")
    assert torch.npu.current_stream() == default
    event = torch.npu.Event()
    event.record(side)
    event.wait(default)
    event.synchronize()
    assert event.query() and (x + 1).cpu()[0] == 2


def test_replays_from_several_threads(capture):
    inputs = [torch.zeros(64, device="npu") for _ in range(4)]
    graphs = [capture(lambda x=x: x.add_(1).add_(1))[0] for x in inputs]

    def replay(graph):
        stream = torch.npu.Stream()
        with torch.npu.stream(stream):
            for _ in range(50):
                graph.replay()
            stream.synchronize()

    for x in inputs:
        x.zero_()
    threads = [threading.Thread(target=replay, args=(graph,)) for graph in graphs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.npu.synchronize()
    assert all(x.cpu().eq(100).all() for x in inputs)


def test_waiting_for_the_kernel_of_another_thread_lets_it_run():
    """empty_cache() synchronises with Python's lock held, which the kernel needs to come to its end."""
    inside, ended = threading.Event(), threading.Event()

    def kernel():
        inside.set()
        time.sleep(0.05)
        ended.set()

    def work():
        with torch.npu.stream(torch.npu.Stream()):
            simkernels.launch(kernel)

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(10)
    x = torch.ones(4, device="npu")  # what waits behind the other thread's kernel
    torch.npu.empty_cache()
    assert ended.is_set()
    thread.join()
    assert x.cpu().tolist() == [1] * 4


def test_another_soc_in_a_process_of_its_own():
    lib = pathlib.Path(os.environ["LD_LIBRARY_PATH"].split(os.pathsep)[0])
    base = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LD_LIBRARY_PATH")}
    environment = run.environment(lib, SITE, {**base, "SIMNPU_SOC": "Ascend910_9391"})
    code = (
        "import simnpu, torch; simnpu.install(); print(torch.npu.get_device_name(), torch.ones(2).npu().add(1).cpu())"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "Ascend910_9391 tensor([2., 2.])"


def test_build_does_nothing_the_second_time(tmp_path, capfd):
    assert build.build(SITE, tmp_path)
    assert not build.build(SITE, tmp_path)
    (tmp_path / "stamp").write_text("another wheel")
    assert build.build(SITE, tmp_path)
    assert (tmp_path / "libascendcl.so").resolve() == tmp_path / "libsimcann.so"
    assert "warning" not in capfd.readouterr().err


def test_counters_start_from_a_quiet_device():
    assert simnpu.pending() == 0 and simnpu.live_graphs() == 0 and simnpu.held_kernels() == 0
