"""How long a build still takes, as the bar says: of the stages that are done, and of what is counted in one."""

import io

import pytest
from rich.console import Console

from aotair.report.progress import _SHARES, Left, Progress


def test_nothing_is_said_before_there_is_anything_to_go_by():
    left = Left()
    left.stage("recipe", 0.0)
    assert left.now(1.0) == (0.0, None)
    left.stage("model", 1.0)
    assert left.now(2.0)[1] is None


def test_the_pace_of_what_is_done_says_what_is_left():
    left = Left()
    for name in ("recipe", "model", "export"):
        left.stage(name, 0.0 if name == "recipe" else 3.0)
    left.stage("passes", 40.0)
    done, seconds = left.now(0.0)
    assert done == pytest.approx(0.46) and seconds == pytest.approx(46 / 46 * 54)
    left.stage("prove", 5.0)
    left.counted(1, 2)
    done, seconds = left.now(14.0)
    assert done == pytest.approx(0.65) and seconds == pytest.approx(65 / 65 * 35)


def test_a_stage_that_counts_nothing_goes_on_as_it_should_and_never_ends_by_itself():
    left = Left()
    for name in ("recipe", "model", "export"):
        left.stage(name, 0.0 if name == "recipe" else 3.0)
    assert left.now(10.0)[0] < left.now(20.0)[0] < left.now(1000.0)[0] == pytest.approx(0.42)


def test_the_shares_are_those_of_a_whole_build():
    assert sum(share for name, share in _SHARES.items() if name != "like") == 100


def test_a_terminal_sees_a_bar_with_the_time_left(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(
        "aotair.report.progress.Console",
        lambda **_: Console(file=screen, force_terminal=True, width=200, highlight=False),
    )
    with Progress() as progress:
        progress.stage("recipe")
        progress.stage("model")
        progress.stage("export")
        progress.stage("prove")
        progress.bucket(1, 4)
        assert progress.line().startswith("proving each bucket against the original, step 2 of 4 (0 s, about ")
        progress._bar.refresh()
    text = screen.getvalue()
    assert "s left)" in text and "proving each bucket against the original, step 2 of 4: 0.0 s" in text
