"""A load of which one system call fails is refused with an error of aotair's, and leaves nothing open."""

import errno
import gc
import itertools
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import aotair
from aotair_runtime.errors import AotairError

CALLS = [(os, "open"), (os, "preadv"), (os, "fstat"), (os, "stat"), (os, "listdir"), (mmap, "mmap")]
MOST = 200  # calls of a load, of which there are far fewer


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("faults") / "linear.aotair"
    torch.manual_seed(0)
    return aotair.build(model=torch.nn.Linear(4, 2), name="linear", inputs={"input": torch.ones(1, 4)}, out=out)


class Failing:
    """System calls of which the `left`-th, counted from one, fails with that error; none does below."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.left, self.number = 0, 0
        for module, name in CALLS:
            monkeypatch.setattr(module, name, self._counted(getattr(module, name)))

    def _counted(self, function: Callable) -> Callable:
        def called(*args, **kwargs):
            self.left -= 1
            if self.left == 0:
                raise OSError(self.number, os.strerror(self.number))
            return function(*args, **kwargs)

        return called


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.ENOMEM, errno.ESTALE, errno.EACCES])
def test_each_system_call_of_a_load_may_fail(path: Path, number: int, monkeypatch: pytest.MonkeyPatch):
    x, refused = torch.ones(1, 4), 0
    with aotair.load(path) as model:
        wanted = model(x).clone()
    before = len(os.listdir("/proc/self/fd"))
    failing = Failing(monkeypatch)
    for place in itertools.count(1):
        failing.left, failing.number = place, number
        try:
            with aotair.load(path) as model:
                answer = model(x).clone()
        except AotairError as error:
            assert os.strerror(number) in f"{error}{error.__cause__}"
            refused += 1
            continue
        reached, failing.left = failing.left <= 0, 0
        assert torch.equal(answer, wanted)
        if not reached:
            break
        assert place < MOST
    gc.collect()  # from Python 3.13 on, an error whose frames hold a mapping is one for the collector
    assert refused > 10 and len(os.listdir("/proc/self/fd")) == before
