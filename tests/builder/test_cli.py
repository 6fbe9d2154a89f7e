"""Every command as a user would type it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import safetensors.torch
import torch
import yaml
from cases import MODELS, NOTEBOOK, RECIPES
from click.testing import CliRunner

from aotair.cli import main
from aotair.passes.pipeline import BUCKET_PIPELINE, pipeline
from aotair.recipe.config import CompilerConfig
from aotair.target.target import Target


def aotair(*arguments: object, fails: bool = False) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)
    assert (result.exit_code != 0) == fails, result.output
    return result.output


@pytest.fixture
def linear_recipe(tmp_path: Path) -> Path:
    file = tmp_path / "linear.yaml"
    file.write_text(yaml.safe_dump(RECIPES["linear"]))
    return file


def test_build_ends_with_a_table(linear_recipe: Path, tmp_path: Path):
    text = aotair("build", linear_recipe, "-o", tmp_path / "x.aotair")
    for part in (
        "graph nodes before / after",
        "buckets, each proved",
        "arena bytes",
        "bytes of the weights file",
        "largest error",
    ):
        assert part in text
    assert "seconds: prove" in text


def test_a_build_says_what_the_passes_did(tmp_path: Path):
    file = tmp_path / "encoder.yaml"
    file.write_text(yaml.safe_dump(RECIPES["encoder"]))
    text = aotair("build", file, "-o", tmp_path / "x.aotair")
    assert "rewrites: reinplace_inplaceable_ops  " in text and "rewrites: streams" not in text


def test_build_says_as_json(linear_recipe: Path, tmp_path: Path):
    result = CliRunner().invoke(main, ["build", str(linear_recipe), "-o", str(tmp_path / "x.aotair"), "--json"])
    summary = json.loads(result.stdout)
    assert summary["buckets"] == 3 and summary["max_abs_error"] <= 1e-5
    assert set(summary["seconds"]) == {"recipe", "model", "export", "passes", "buckets", "prove", "pack", "check"}


def test_build_writes_into_the_working_directory_by_default(linear_recipe: Path, tmp_path: Path):
    command = [sys.executable, "-m", "aotair.cli", "build", "linear.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (tmp_path / "linear.aotair" / "program.msgpack").is_file()
    assert "proving each bucket against the original, 6 steps" in done.stderr


def test_build_dumps_every_stage(linear_recipe: Path, tmp_path: Path):
    aotair("build", linear_recipe, "-o", tmp_path / "x.aotair", "--dump-graph", tmp_path / "dump")
    names = [file.name for file in sorted((tmp_path / "dump").iterdir())]
    steps = [step.name for step in pipeline(CompilerConfig(), Target("cpu")) if step.enabled(CompilerConfig())]
    last = [step.name for step in BUCKET_PIPELINE if step.enabled(CompilerConfig())]
    steps += [f"{name}_n={size}" for size in (1, 4, 16) for name in last]
    assert names == [f"{number:02}_{name}.txt" for number, name in enumerate(["export", *steps])]


def test_the_pipeline_can_be_stopped_and_limited(linear_recipe: Path, tmp_path: Path):
    for options in (["--stop-after", "remove_noop_ops"], ["--max-rewrites", "0"]):
        aotair("build", linear_recipe, "-o", tmp_path / "x.aotair", "--dump-graph", tmp_path / "dump", *options)
    text = aotair("build", linear_recipe, "-o", tmp_path / "y.aotair", "--stop-after", "nothing", fails=True)
    assert "no pass 'nothing' to stop after" in text and "remove_noop_ops" in text


@pytest.mark.parametrize("model", ["Linear", "Encoder", "Structured"])
def test_init_writes_a_recipe_that_can_be_read(model: str, tmp_path: Path):
    from aotair.recipe.read import read_recipe

    text = aotair("init", f"{MODELS}:{model}")
    file = tmp_path / "first.yaml"
    file.write_text(text)
    assert text.startswith("# Guessed from the signature")
    assert read_recipe(file).model.factory == f"{MODELS}:{model}"


def test_init_makes_a_recipe_that_builds_where_it_could_know_the_shapes(tmp_path: Path):
    file = tmp_path / "first.yaml"
    aotair("init", f"{MODELS}:Linear", "-o", file)
    aotair("build", file, "-o", tmp_path / "x.aotair")


def test_inspect(built):
    text = aotair("inspect", built("encoder"))
    assert "input  ids: int64[batch, seq] (user, pad any)" in text
    assert "output 0: float32[batch, seq, 16]" in text
    assert "batch=4, seq=16" in text
    program = aotair("inspect", built("encoder"), "--bucket", "batch=1, seq=4")
    assert "aten::addmm.out(" in program and "return %" in program
    assert json.loads(aotair("inspect", built("encoder"), "--json"))["name"] == "encoder"


def test_inspect_lists_weights_and_what_they_follow_from(built):
    text = aotair("inspect", built("derived"), "--weights")
    rows = {line.split()[0]: line.split() for line in text.split("\n\n")[0].splitlines()[2:]}
    sources = ["scale,", "first.weight,", "first.bias,", "second.weight,", "second.bias"]
    assert rows["scale:mul"] == ["scale:mul", "float32[6,", "4]", "96", "derived", *sources]
    assert rows["first.weight"] == ["first.weight", "float32[3,", "4]", "48", "weight"]
    assert "second.weight" not in rows, "no bucket reads it"
    assert "aten::cat.out([" in text and "inputs scale:mul=%0" in text
    assert aotair("inspect", built("linear"), "--weights").splitlines()[2].startswith("linear.")


def test_the_programs_text(built, golden_text):
    golden_text("linear_program.txt", aotair("inspect", built("linear"), "--bucket", "n=4"))
    golden_text("cache_program.txt", aotair("inspect", built("cache"), "--bucket", "n=2"))


def test_inspect_names_the_buckets_there_are(built):
    result = CliRunner().invoke(main, ["inspect", str(built("linear")), "--bucket", "n=3"])
    assert result.exit_code == 1 and "n=1; n=4; n=16" in result.output


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_run_reads_and_writes_tensor_files(built, original, tmp_path: Path, kind: str):
    x = torch.randn(3, 4)
    given, out = tmp_path / f"in.{kind}", tmp_path / f"out.{kind}"
    if kind == "npz":
        numpy.savez(given, x=x.numpy())
    else:
        safetensors.torch.save_file({"x": x}, given)
    text = aotair("run", built("linear"), given, "-o", out)
    assert "output: float32[3, 3]" in text
    got = torch.from_numpy(numpy.load(out)["output"]) if kind == "npz" else safetensors.torch.load_file(out)["output"]
    torch.testing.assert_close(got, original("linear")(x))


def test_run_names_nested_outputs(built, tmp_path: Path):
    given = tmp_path / "in.safetensors"
    safetensors.torch.save_file({"x": torch.randn(2, 2, 3)}, given)
    text = aotair("run", built("structured"), given)
    assert [line.split(":")[0] for line in text.splitlines()] == ["a", "rest[0]", "rest[1][0]", "again"]


def test_run_refuses_what_it_cannot_read(built, tmp_path: Path):
    for name, content in [("x.txt", b"hi"), ("x.npz", b"hi"), ("x.safetensors", b"hi")]:
        (tmp_path / name).write_bytes(content)
        result = CliRunner().invoke(main, ["run", str(built("linear")), str(tmp_path / name)])
        assert result.exit_code == 1 and result.output.startswith("error: "), result.output
    pickled = tmp_path / "p.npz"
    numpy.savez(pickled, x=numpy.array([{"a": 1}], dtype=object))
    result = CliRunner().invoke(main, ["run", str(built("linear")), str(pickled)])
    assert result.exit_code == 1 and "not readable" in result.output


def test_verify(built, tmp_path: Path):
    assert aotair("verify", built("encoder")).count("ok") == 6
    assert aotair("verify", built("counter")).count("ok") == 2
    assert aotair("verify", built("cache")).count("ok") == 2
    assert all(row["within"] for row in json.loads(aotair("verify", built("linear"), "--json")))


def test_verify_finds_a_program_that_answers_wrongly(tmp_path: Path, built):
    import shutil
    from dataclasses import replace

    from aotair_runtime.artifact.digests import digest
    from aotair_runtime.artifact.open import read_program
    from aotair_runtime.format import codec
    from aotair_runtime.format.schema import File

    path = Path(shutil.copytree(built("linear"), tmp_path / "x"))
    weights = safetensors.torch.load_file(path / "weights.safetensors")
    weights["linear.bias"] = weights["linear.bias"] + 0.01
    safetensors.torch.save_file(weights, path / "weights.safetensors")
    program = read_program(path)
    file = path / "weights.safetensors"
    files = tuple(File(f.name, (path / f.name).stat().st_size, digest(path / f.name)) for f in program.files)
    assert file.name in [f.name for f in files]
    (path / "program.msgpack").write_bytes(codec.dump(replace(program, files=files)))
    result = CliRunner().invoke(main, ["verify", str(path)])
    assert result.exit_code == 1 and "WRONG" in result.output


def test_bench_times_the_methods_of_several_entry_points(tmp_path: Path):
    file, out = tmp_path / "notebook.yaml", tmp_path / "notebook.aotair"
    file.write_text(yaml.safe_dump(NOTEBOOK))
    aotair("build", file, "-o", out)
    rows = json.loads(aotair("bench", out, "--recipe", file, "--seconds", 0.01, "--json"))
    assert {row["entry"] for row in rows} == {"write", "read"} and all(row["eager"] > 0 for row in rows)


def test_bench_times_every_bucket_beside_the_original(built, linear_recipe: Path):
    text = aotair("bench", built("linear"), "--recipe", linear_recipe, "--seconds", "0.01", "--memory")
    assert "replay / eager" in text and "lower bound" in text
    rows = json.loads(aotair("bench", built("linear"), "--seconds", "0.01", "--json"))
    assert [row["bucket"] for row in rows] == ["n=1", "n=4", "n=16"]
    assert all(row["host"] > 0 and row["median"] <= row["p99"] for row in rows)


@pytest.mark.long
def test_bench_counts_calls_of_several_workers_beside_one(built):
    text = aotair("bench", built("linear"), "--workers", 2, "--seconds", "0.05")
    assert "calls/s, 2 x 1" in text and all(f"forward: n={size}" in text for size in (1, 4, 16))
    rows = json.loads(aotair("bench", built("linear"), "--workers", 2, "--seconds", "0.05", "--json"))
    wanted = [(n, f"n={size}") for n in (1, 2) for size in (1, 4, 16)]
    assert [(row["workers"], row["bucket"]) for row in rows] == wanted
    assert all(row["calls"] > 0 and row["median"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (("--memory",), 2, "without --recipe and --memory"),
        (("--import", "nowhere_to_be_found"), 1, "--import nowhere_to_be_found"),
        (("--device", "npu:7"), 1, "npu"),
    ],
)
def test_workers_that_fail_say_why_and_nobody_waits(built, more: tuple[str, ...], code: int, said: str):
    result = CliRunner().invoke(main, ["bench", str(built("linear")), "--workers", "2", "--seconds", "0", *more])
    assert result.exit_code == code and said in result.output


def test_profile_says_where_the_time_goes_and_writes_a_trace(linear_recipe: Path, tmp_path: Path):
    path, trace, sizes = tmp_path / "x.aotair", tmp_path / "t.json", tmp_path / "sizes.jsonl"
    aotair("build", linear_recipe, "-o", path)
    buckets = ("forward: n=1", "forward: n=4", "forward: n=16")
    text = aotair("profile", path, "--seconds", "0", "--calls", 3, "-o", trace, "--sizes", sizes)
    assert all(any(line.startswith(name) for line in text.splitlines()) for name in buckets)
    assert {"name", "ph", "pid"} <= json.loads(trace.read_text())["traceEvents"][0].keys()
    sent = [json.loads(line)["n"] for line in sizes.read_text().splitlines()]
    assert sent == [1, 1, 1, 4, 4, 4, 16, 16, 16]
    one = json.loads(aotair("profile", path, "--seconds", "0", "--bucket", "n=4", "--json"))
    assert [(found["bucket"], found["calls"]) for found in one] == [("n=4", 10)]
    assert all({"op", "made", "seconds", "cost"} <= step.keys() for step in one[0]["steps"])


def test_profile_calls_with_given_tensors_and_refuses_what_is_not_there(linear_recipe: Path, tmp_path: Path):
    path, file = tmp_path / "x.aotair", tmp_path / "in.safetensors"
    aotair("build", linear_recipe, "-o", path)
    (spec,) = json.loads(aotair("inspect", path, "--json"))["entry_points"][0]["inputs"]
    safetensors.torch.save_file({spec["name"]: torch.zeros(3, 4)}, file)
    text = aotair("profile", path, "--inputs", file, "--seconds", "0", "--calls", 2)
    assert "forward: n=4" in text and "forward: n=16" not in text
    safetensors.torch.save_file({"other": torch.zeros(3, 4)}, file)
    assert "the file lacks inputs" in aotair("profile", path, "--inputs", file, fails=True)
    assert "no such bucket" in aotair("profile", path, "--bucket", "n=5", fails=True)
    assert "--bucket goes with" in aotair("profile", path, "--inputs", file, "--bucket", "n=4", fails=True)
    assert "no such entry point" in aotair("profile", path, "--inputs", file, "--entry", "decode", fails=True)
    assert "--calls" in aotair("profile", path, "--calls", 10**12, fails=True)
