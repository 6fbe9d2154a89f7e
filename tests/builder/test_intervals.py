"""`aotair plan --intervals`: a file planned and shown, and what is wrong with a file said."""

import json

import pytest
from click.testing import CliRunner

from aotair.cli import main

CASE = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n"  # MiniMalloc's own example


def run(tmp_path, text: str, *options: str):
    file = tmp_path / "case.csv"
    file.write_text(text)
    return CliRunner().invoke(main, ["plan", "--intervals", str(file), *options])


def test_a_file_is_planned_at_its_bound(tmp_path):
    done = run(tmp_path, CASE, "--json")
    found = json.loads(done.stdout)
    assert (found["height"], found["lower_bound"], found["gap"]) == (12, 12, 0)
    assert set(found["offsets"]) == {"b1", "b2", "b3", "b4", "b5"} and found["algorithm"]
    aligned = json.loads(run(tmp_path, CASE, "--json", "--alignment", "64").stdout)
    assert aligned["height"] == 192 and all(offset % 64 == 0 for offset in aligned["offsets"].values())
    text = run(tmp_path, CASE).stdout
    assert "lower bound" in text and "0 (0.00%)" in text and "b5" in text


@pytest.mark.parametrize(
    "text",
    [
        "id,lower,upper\na,0,1\n",
        "id,lower,upper,size\na,1,1,4\n",
        "id,lower,upper,size\na,0,1,x\n",
        "id,lower,upper,size\na,0,1,4\na,0,1,4\n",
        "id,lower,upper,size\na,0,1\n",
        "id,lower,upper,size\na,-1,1,4\n",
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, text):
    done = run(tmp_path, text)
    assert done.exit_code == 1 and "case.csv: no intervals" in done.stderr


def test_other_mistakes(tmp_path):
    assert "no power of two" in run(tmp_path, CASE, "--alignment", "3").stderr
    done = CliRunner().invoke(main, ["plan", "--intervals", str(tmp_path / "nowhere.csv")])
    assert done.exit_code == 1 and "no intervals: FileNotFoundError" in done.stderr
    empty = json.loads(run(tmp_path, "id,lower,upper,size\n", "--json").stdout)
    assert empty["height"] == 0
