"""Packed weights lie in one mapping of large pages: apart, in line, and gone with the last of them."""

from pathlib import Path

import pytest
import torch

import aotair
from aotair_runtime.devices import large_pages, onednn
from aotair_runtime.devices.large_pages import PAGE, memory, room


def mapped(nbytes: int) -> int:
    """How many mappings of at least so many bytes the process has."""
    found = 0
    for line in Path("/proc/self/maps").read_text(encoding="ascii").splitlines():
        first, last = (int(one, 16) for one in line.split()[0].split("-"))
        found += last - first >= nbytes
    return found


def test_pieces_of_a_room_lie_apart_in_line_and_behind_each_other():
    sizes = [PAGE, 1, 65, 3 * PAGE + 5]
    with room(sizes):
        pieces = [memory(size) for size in sizes]
        beyond = memory(64)
    for number, piece in enumerate(pieces):
        piece.fill_(number + 1)
    beyond.fill_(9)
    assert [int(piece.numel()) for piece in pieces] == sizes
    assert all(bool((piece == number + 1).all()) for number, piece in enumerate(pieces))
    places = [piece.data_ptr() for piece in pieces]
    assert places[0] % PAGE == 0 and not any(place % 64 for place in places)
    assert places == sorted(places) and places[-1] - places[0] == PAGE + 64 + 128
    assert not places[0] <= beyond.data_ptr() < places[-1] + sizes[-1]


def test_a_room_is_given_back_with_its_last_piece():
    size = 40 * PAGE + 12345
    before = mapped(size)
    with room([size // 2, size // 2]):
        one, other = memory(size // 2), memory(size // 2)
    assert mapped(size) == before + 1
    del one
    assert mapped(size) == before + 1
    del other
    assert mapped(size) == before


def test_what_is_less_than_a_page_has_no_room():
    with room([100, 200]):
        assert memory(100).numel() == 100 and large_pages._room.get() is None
    with room([PAGE]):
        with room([]):
            assert large_pages._room.get() is None
        assert large_pages._room.get() is not None


@pytest.mark.parametrize("advice", [None, 12345])
def test_a_system_without_large_pages(advice: int | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(large_pages, "_ADVICE", advice)
    with room([PAGE]):
        assert not memory(PAGE).any()


def test_memory_that_is_not_there_is_an_error_of_memory():
    with pytest.raises(RuntimeError, match="can't allocate memory"), room([1 << 60]):
        pass


@pytest.mark.skipif(not onednn.packs("aten::addmm.out", torch.float32), reason="no library packs float32 here")
def test_a_load_has_its_packed_weights_together(tmp_path: Path):
    model = torch.nn.Sequential(*(torch.nn.Linear(768, 768) for _ in range(4))).eval()
    path = aotair.build(
        model=model, inputs={"input": {"shape": [2, 768], "dtype": "float32"}}, out=tmp_path / "m.aotair"
    )
    with aotair.load(path) as served:
        weights = served._resident.by_number.values()
        places = [one.address for one in weights]
        total = sum(one.nbytes for one in weights)
        assert len(places) == 4 and max(places) - min(places) < total and not min(places) % PAGE
        x = torch.randn(2, 768)
        with torch.no_grad():
            torch.testing.assert_close(served(x), model(x), atol=1e-5, rtol=1e-5)
