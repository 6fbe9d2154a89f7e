"""Which library of oneDNN is called, why none is, and that what is made by it is given back."""

from pathlib import Path

import pytest
import torch

from aotair_runtime.devices import onednn_library, onednn_product
from aotair_runtime.devices.onednn_product import LibraryWeight

pytestmark = pytest.mark.skipif(
    not onednn_product.has_kernels(torch.float32),
    reason=f"fast kernels of a library of oneDNN: {onednn_library.why_none() or 'not for this processor'}",
)


@pytest.fixture
def found_anew():
    onednn_library._found.cache_clear()
    yield onednn_library._found
    onednn_library._found.cache_clear()


def test_the_library_says_what_it_is(found_anew):
    library, reason = found_anew()
    assert library is not None and library.version[0] == 3 and not reason


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (("_NAMES", ("libno-such-library.so.3",)), "not installed"),
        (("_NAMES", ("libm.so.6",)), "has not the interface of oneDNN 3"),
        (("_OPENMP", 4), "is not oneDNN 3 for OpenMP"),
        (("shares_threads", lambda lib: False), "threads of its own"),
    ],
)
def test_why_there_is_none(found_anew, monkeypatch: pytest.MonkeyPatch, change, text: str):
    monkeypatch.setattr(onednn_library, *change)
    library, reason = found_anew()
    assert library is None and text in reason and reason.endswith("pip install onednn-cpu-gomp")


def test_a_library_that_cannot_be_opened_says_why(found_anew, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libother.so").write_bytes(b"no library")
    monkeypatch.setattr(onednn_library, "_NAMES", ("libother.so",))
    monkeypatch.setattr(onednn_library.sysconfig, "get_path", lambda name: str(tmp_path))
    assert found_anew()[0] is None and "libother.so: " in found_anew()[1]


def test_what_oneDNN_refuses_is_an_error():
    library = onednn_library.library()
    assert library is not None
    with library.held() as kept, pytest.raises(onednn_library.OnednnError, match="failed with status"):
        kept.desc((2, 3), 99, (3, 1))


def test_objects_are_given_back(monkeypatch: pytest.MonkeyPatch):
    library, counts = onednn_library.library(), {"made": 0, "freed": 0}
    assert library is not None
    assert library.engine, "it stays"
    make, free = library._new, library._free
    monkeypatch.setattr(library, "_new", lambda *args: (counts.update(made=counts["made"] + 1), make(*args))[1])
    monkeypatch.setattr(library, "_free", lambda *args: (counts.update(freed=counts["freed"] + 1), free(*args))[1])
    x, weight, out = torch.randn(3, 32), torch.randn(64, 32), torch.empty(3, 64)
    call = LibraryWeight(weight).call(torch.ops.aten.mm.out, (x, weight.t()), {"out": out})
    assert counts["made"] > counts["freed"]
    del call
    assert counts["made"] == counts["freed"] > 0
