"""The artifact on disk: the same bytes for the same recipe, each weight once, small beside its weights."""

import os
import subprocess
import sys
from pathlib import Path

import safetensors.torch
import torch
import yaml
from cases import RECIPES

import aotair
from aotair_runtime.artifact.open import digest, read_program
from aotair_runtime.format.schema import Space


def test_two_builds_in_two_processes_are_identical(tmp_path: Path):
    for name in ("encoder", "tied", "structured", "counter"):
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump(RECIPES[name]))
        digests = []
        for seed in ("1", "4242"):
            out = tmp_path / f"{name}{seed}.aotair"
            command = [sys.executable, "-m", "aotair.cli", "build", str(file), "-o", str(out)]
            subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONHASHSEED": seed})
            digests.append({entry.name: digest(entry) for entry in sorted(out.iterdir())})
        assert digests[0] == digests[1], name
        assert len(digests[0]) == 4


def test_each_distinct_weight_is_stored_once(built):
    weights = safetensors.torch.load_file(built("tied") / "weights.safetensors")
    assert list(weights) == ["a.weight"]
    program = read_program(built("tied"))
    assert [constant.name for constant in program.constants] == ["a.weight"]


def test_unused_weights_are_not_stored(tmp_path: Path):
    source = tmp_path / "m.py"
    source.write_text(
        "import torch\n"
        "class M(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.used, self.unused = torch.nn.Linear(2, 2), torch.nn.Linear(100, 100)\n"
        "    def forward(self, x):\n"
        "        return self.used(x)\n"
    )
    x = {"shape": [1, 2], "dtype": "float32"}
    out = aotair.build({"name": "m", "model": {"factory": f"{source}:M"}, "inputs": {"x": x}}, tmp_path / "m.aotair")
    assert set(safetensors.torch.load_file(out / "weights.safetensors")) == {"used.weight", "used.bias"}


def test_weights_are_mapped_not_copied(built):
    from aotair_runtime.artifact.open import open_artifact

    artifact = open_artifact(built("encoder"))
    storages = {tensor.untyped_storage().data_ptr() for tensor in artifact.constants}
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if "weights.safetensors" in line]
    spans = [tuple(int(part, 16) for part in line.split()[0].split("-")) for line in mapped]
    assert storages and all(any(low <= s < high for low, high in spans) for s in storages)


def test_buckets_share_instructions(built):
    program = read_program(built("encoder"))
    (entry,) = program.entry_points
    run = sum(len(bucket.code) for bucket in entry.buckets)
    assert len(program.instructions) < run / 2


def test_the_largest_bucket_is_captured_first(built):
    (entry,) = read_program(built("encoder")).entry_points
    heights = [entry.buckets[i].height for i in entry.capture_order]
    assert heights == sorted(heights, reverse=True)


def test_what_was_proved_is_recorded(built):
    (entry,) = read_program(built("encoder")).entry_points
    for bucket in entry.buckets:
        assert bucket.proof.max_abs_error <= 1e-5
        assert bucket.proof.padding or bucket.sizes == (1, 1)
    runs = [run for bucket in entry.buckets for run in bucket.proof.padding]
    assert {run.poison.split("=")[0] for run in runs} == {"ids"}
    poisons = {run.poison.partition("; real values: ")[::2] for run in runs}
    assert {poison for poison, _ in poisons} == {"ids=random", "ids=49", "ids=0"}
    assert {words for _, words in poisons} == {
        "",
        "ids all the least, mask all but the pad value",
        "ids all the greatest",
    }
    assert all(run.max_abs_error <= 1e-5 for run in runs)
    linear = [run for b in read_program(built("linear")).entry_points[0].buckets for run in b.proof.padding]
    assert {run.poison.partition(";")[0] for run in linear} == {"x=nan", "x=inf", "x=-inf", "x=1e+30"}
    assert all(run.identical for run in linear)


def test_the_plan_holds_in_the_program_too(built):
    """No two tensors of the arena that are alive at once share a byte, told from the program alone."""
    for name in ("encoder", "views", "structured"):
        program = read_program(built(name))
        for bucket in program.entry_points[0].buckets:
            _check_no_live_byte_is_written(program, bucket)


def _check_no_live_byte_is_written(program, bucket) -> None:
    """Replay the program on a map of bytes: each read must find what the last write of that tensor's bytes left."""
    from aotair_runtime.format.schema import Form, TensorArg
    from aotair_runtime.format.torch_names import dtype

    owner: dict[int, object] = {}

    def span(number: int) -> set[int]:
        tensor = bucket.tensors[number]
        if tensor.space != Space.ARENA:
            return set()
        layout = program.layouts[tensor.layout]
        width = dtype(layout.dtype).itemsize
        meta = torch.empty_strided(layout.shape, layout.strides, device="meta")
        index = torch.arange(meta.untyped_storage().nbytes() // 4).as_strided(layout.shape, layout.strides).flatten()
        return {tensor.offset + int(i) * width + k for i in index.tolist() for k in range(width)}

    def flat(values):
        for value in values:
            if isinstance(value, tuple):
                yield from flat(value)
            elif isinstance(value, TensorArg):
                yield value.index

    for number in bucket.inputs:
        owner |= dict.fromkeys(span(number), "input")
    for step, code in enumerate(bucket.code):
        instruction = program.instructions[code]
        args = list(flat((*instruction.args, *(v for _, v in instruction.kwargs))))
        writes = list(instruction.outs) if instruction.form != Form.EFFECT else args[:1]
        reads = args if instruction.form != Form.EFFECT else args[1:]
        written = set().union(*(span(n) for n in writes if n >= 0)) if writes else set()
        for number in reads:
            bytes_read = span(number)
            assert all(byte in owner for byte in bytes_read), f"{instruction.node} reads what nobody wrote"
            if instruction.form != Form.EFFECT:
                assert not bytes_read & written, f"{instruction.node} overwrites its own input"
        owner |= dict.fromkeys(written, step)
    for number in bucket.outputs:
        assert all(byte in owner for byte in span(number))
