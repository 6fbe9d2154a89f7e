"""Many names said shortly, and none of them lost."""

import itertools
import re

from hypothesis import given
from hypothesis import strategies as st

from aotair_runtime.artifact.listed import listed, listed_by_file


def test_layers_are_said_once():
    names = [f"model.layers.{n}.{part}.weight" for n in range(30) for part in ("up", "down")]
    assert listed(names) == "model.layers.{0-29}.up.weight, model.layers.{0-29}.down.weight"
    assert listed([f"h.{n}.x" for n in (0, 1, 2, 5, 9)]) == "h.{0-2,5,9}.x"
    assert listed(["a.1.b"]) == "a.1.b" and listed([]) == "none"


def test_experts_of_layers_are_said_once():
    names = [f"layers.{n}.experts.{e}.w1" for n in range(4) for e in range(8)]
    assert listed(names) == "layers.{0-3}.experts.{0-7}.w1"


def test_a_number_within_a_word_is_no_number():
    assert listed(["w1.x", "w2.x"]) == "w1.x, w2.x"


def test_by_file():
    names = ["a.0.w", "a.1.w", "b"]
    assert listed_by_file(names, {"a.0.w": "1.st", "a.1.w": "1.st", "b": "2.st"}) == "a.{0-1}.w (in 1.st); b (in 2.st)"


parts = st.lists(st.one_of(st.sampled_from(["a", "w1", "norm"]), st.integers(0, 12).map(str)), min_size=1, max_size=4)


@given(st.lists(parts.map(".".join), unique=True, max_size=25))
def test_every_name_can_be_read_back_and_no_other(names: list[str]):
    found = set()
    for one in re.findall(r"(?:[^,{]|\{[^}]*\})+", listed(names)) if names else []:
        pieces = re.split(r"(\{[^}]*\})", one.strip())
        choices = [_numbers(piece) if piece.startswith("{") else [piece] for piece in pieces]
        found |= {"".join(choice) for choice in itertools.product(*choices)}
    assert found == set(names)


def _numbers(text: str) -> list[str]:
    ends = [run.partition("-")[::2] for run in text[1:-1].split(",")]
    return [str(number) for low, high in ends for number in range(int(low), int(high or low) + 1)]
