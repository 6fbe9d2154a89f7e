"""What do the simulator's tests share? They run only in a process that has the device: see run.py."""

import gc
import importlib.util

import pytest

if importlib.util.find_spec("simcann") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    import simnpu
    import torch

    gc.freeze()  # what torch holds for good need not be searched after each test


@pytest.fixture(autouse=True)
def clean_device():
    """Each test starts with an idle device and the default stream, and may not leave blocked work or a capture."""
    torch.manual_seed(0)
    yield
    left = simnpu.pending()
    simnpu.abandon()
    simnpu.take_failure()
    torch.npu.set_stream(torch.npu.default_stream())
    gc.collect()
    assert left == 0, "the test left work that nothing releases"
    assert not torch.npu.is_current_stream_capturing()


@pytest.fixture
def capture():
    """Capture a function into a graph of its own: `graph, result = capture(function)`."""

    def run(function, **options):
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph, **options):
            result = function()
        return graph, result

    return run
