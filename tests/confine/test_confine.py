"""The claim that an artifact cannot reach beyond its own memory: hostile calls of every op, and hostile artifacts.

`make fuzz-artifacts` makes more of both.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from marks import long

import aotair
from aotair.errors import UnsupportedError
from aotair_runtime.artifact import ops as _defined  # noqa: F401 (air's ops)
from aotair_runtime.confine.check import check_calls
from aotair_runtime.confine.demands import CHECKS
from aotair_runtime.confine.op_table import Allowed, demands, names
from aotair_runtime.confine.shapes import RULES, RULES_OF_EACH
from aotair_runtime.errors import FormatVersionError, MalformedError, NamespaceError
from aotair_runtime.format.schema import Form, Instruction, TensorArg

from . import fuzz
from .calls import Spec
from .mutants import FIELDS, body, write

TESTS = Path(__file__).parent.parent
# Cases: of the ops a few each.
CASES = [("ops", 100), ("artifacts", 250), long("ops", 2_000), long("artifacts", 3_500)]


@pytest.mark.parametrize("what, cases", CASES)
def test_hostile_input_reaches_nothing_but_its_own_memory(what: str, cases: int):
    command = [sys.executable, "-m", "confine", what, "--cases", str(cases), "--seed", "test"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=TESTS)
    assert done.returncode == 0 and " 0 faults" in done.stdout, done.stdout + done.stderr[-2000:]


@pytest.mark.parametrize("batch, refused", [(0, True), (1, False)])
def test_nothing_is_not_resized_to_any_width(batch: int, refused: bool):
    """Of no rows at all the result takes no bytes, but the kernel's own tables are as long as a row of it."""
    op = torch.ops.aten.upsample_linear1d.vec
    width = 1 << 45 if refused else 9
    spec = Spec("float32", (batch, 3, 4), (12, 4, 1))
    args = (TensorArg(0), (width,), False, None)
    program = fuzz._program(op, Instruction(0, int(Form.COPY), args, (), (-1,), "node"), [spec])
    if refused:
        with pytest.raises(MalformedError):
            check_calls(program, (op,), Allowed(), "here")
    else:
        check_calls(program, (op,), Allowed(), "here")


def test_a_fault_is_found():
    """The fuzzer sees what it looks for: an op that writes where it may not, a crash, and what hangs."""
    script = """
import ctypes, time
from confine import supervised
from confine.guarded import Guarded
import torch
def make():
    guard = Guarded(64)
    x = guard.place(torch.zeros(4), (4,), (1,))
    supervised.HANGS = 0.5
    def work(case):
        if case == 1:
            ctypes.memset(x.data_ptr() - 8, 0, 4)
            if not guard.is_clean():
                raise supervised.Fault("wrote before")
        if case == 2:
            ctypes.memset(x.data_ptr(), 0, 17)
        if case == 3:
            time.sleep(60)
        if case == 4:
            raise KeyError("raw")
        return "ran"
    return work
print(supervised.supervise(make, 0, 6))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=TESTS, check=True)
    for fault in ("(1, 'wrote before')", "(2, 'SIGSEGV')", "(4, \"KeyError: 'raw'"):
        assert fault in done.stdout, done.stdout
    assert "(3, 'hangs')" in done.stdout and "'ran': 2" in done.stdout, done.stdout


def test_every_op_of_the_table_exists_and_its_demands_name_arguments_of_its_overloads():
    named: dict[str, set[str]] = {}
    for name in names():
        namespace, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        if namespace == "npu" or base.startswith("fused"):
            continue
        op = getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")
        named.setdefault(base, set()).update(argument.name for argument in op._schema.arguments)
    for name in names():
        base = name.partition("::")[2].partition(".")[0]
        wanted = demands(name)
        assert {*wanted.ranges, *wanted.indices} <= named.get(base, {*wanted.ranges, *wanted.indices}), name


def test_every_word_of_the_table_is_known():
    for name in names():
        wanted = demands(name)
        assert {*wanted.tensors} <= {*CHECKS} and wanted.shape in {"", *RULES, *RULES_OF_EACH}, name


@pytest.mark.parametrize(
    "name",
    [
        "aten::set_.source_Tensor",  # what a tensor refers to
        "aten::resize_",
        "aten::as_strided",
        "aten::native_batch_norm",  # writes what its schema does not mark
        "aten::normal_",  # moves the caller's generator
        "aten::empty.memory_format",  # memory that nobody wrote
        "aten::from_file",
        "aten::max_pool2d_with_indices_backward",  # writes at offsets that it takes for good
        "aten::_cummax_helper",
    ],
)
def test_ops_that_reach_beyond_their_arguments_are_not_in_the_table(name: str):
    assert not Allowed().holds(name)
    assert Allowed(ops=(name,)).holds(name) and Allowed(namespaces=("aten",)).holds(name)


# ---- what a build says -----------------------------------------------------------------------------------------------


class Counts(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._fake_quantize_learnable_per_tensor_affine(x, torch.ones(1), torch.zeros(1), -8, 7, 1.0)


PLAIN = {"inputs": {"x": {"shape": [4], "dtype": "float32"}}}


def test_a_build_refuses_what_no_node_would_call_and_says_how_to_allow_it(tmp_path: Path):
    with pytest.raises(UnsupportedError, match="none that a node lets programs call") as caught:
        aotair.build(model=Counts(), name="counts", out=tmp_path / "x.aotair", **PLAIN)
    name = caught.value.what.split()[2]
    assert f"allow_ops: [{name}]" in caught.value.fix
    allowed = {"target": {"allow_ops": [name, f"{name}.out"]}}
    path = aotair.build(model=Counts(), name="counts", out=tmp_path / "x.aotair", **PLAIN, **allowed)
    with pytest.raises(NamespaceError, match="table does not hold") as refused:
        aotair.load(path)
    assert "allow_ops=" in refused.value.fix
    x = torch.randn(4)
    with aotair.load(path, allow_ops=[name, f"{name}.out"]) as model:
        assert torch.equal(model(x), Counts()(x))


class Numbers(torch.nn.Module):
    """Tensors and Python numbers, on either side of each operator, and in place."""

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> list[torch.Tensor]:
        y = x * 2
        y.clamp_(max=1.5).remainder_(0.7).pow_(2)
        whole = [n | 4, n & 6, n ^ 3, n << 2, n >> 1, n % 3, n // 2, 1 << n, 3 ** (n & 3)]
        real = [torch.fmod(x, 2.0), 2**x, x.abs() ** 0.5, x // 0.3, x % 0.3, 1 / x, 3 - x, x.clamp(min=-1, max=1), y]
        return [*whole, *real, x > 0.5, x.ne(0.5), torch.xlogy(x.abs(), 2.0), torch.where(x > 0, x, 0.0), n == 3]


def test_operators_on_tensors_and_numbers_are_in_the_table(tmp_path: Path):
    inputs = {"x": {"shape": [2, 5], "dtype": "float32"}, "n": {"shape": [7], "dtype": "int64", "range": [0, 9]}}
    path = aotair.build(model=Numbers(), name="numbers", out=tmp_path / "x.aotair", inputs=inputs)
    x, n = torch.randn(2, 5), torch.arange(7)
    with aotair.load(path) as model:
        for ours, theirs in zip(model(x, n), Numbers()(x, n), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)  # of the same dtype


# ---- arguments and results -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def linear(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("linear") / "x.aotair"
    inputs = {"input": {"shape": [2, 4], "dtype": "float32"}}
    return aotair.build(
        model=torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.GELU()), name="x", out=out, inputs=inputs
    )


def changed(linear: Path, tmp_path: Path, change) -> Path:
    import shutil

    copy = tmp_path / "copy.aotair"
    shutil.copytree(linear, copy)
    program = body(copy)
    change(program)
    write(program, copy)
    return copy


def test_a_result_of_another_shape_is_refused_before_anything_runs(linear: Path, tmp_path: Path):
    def grow(program):
        for layout in program[FIELDS["layouts"]]:
            if layout[1] == [2, 3]:
                layout[1:] = [[1, 3], [3, 1]]

    with pytest.raises(MalformedError):
        aotair.load(changed(linear, tmp_path, grow))


def test_a_fresh_result_beside_a_named_one_that_would_be_resized_is_refused(linear: Path, tmp_path: Path):
    def beside(program):
        bucket, (product, _) = program[FIELDS["entry_points"]][0][5][0], program[FIELDS["instructions"]]
        program[FIELDS["layouts"]].append(["float32", [1, 3], [3, 1]])
        bucket[1].append([*bucket[1][3][:3], len(program[FIELDS["layouts"]]) - 1])
        product[1], product[3] = int(Form.COPY), [["out", ["t", len(bucket[1]) - 1]]]

    with pytest.raises(MalformedError, match=r"a result of aten\.addmm\.out does not fit its place"):
        aotair.load(changed(linear, tmp_path, beside))


def test_a_fresh_result_that_is_larger_than_all_memory_there_is_is_refused(linear: Path, tmp_path: Path):
    def expand(program):
        bucket, (_, gelu) = program[FIELDS["entry_points"]][0][5][0], program[FIELDS["instructions"]]
        program[FIELDS["layouts"]].append(["float32", [1 << 20, 1 << 20], [0, 0]])
        bucket[1].append([*bucket[1][3][:3], len(program[FIELDS["layouts"]]) - 1])
        op = torch.ops.aten.gelu.default
        program[FIELDS["ops"]].append([op.name(), str(op._schema)])
        gelu[0], gelu[1] = len(program[FIELDS["ops"]]) - 1, int(Form.COPY)
        gelu[2], gelu[4] = [["t", len(bucket[1]) - 1]], [-1]

    with pytest.raises(MalformedError, match=r"aten\.gelu\.default returns more than the bucket says"):
        aotair.load(changed(linear, tmp_path, expand))


def test_a_number_for_a_dtype_and_a_name_for_a_number_are_refused(linear: Path, tmp_path: Path):
    def rename(program):
        for instruction in program[FIELDS["instructions"]]:
            instruction[3] = [
                ["approximate", 3] if name == "approximate" else [name, value] for name, value in instruction[3]
            ]
            instruction[3] = instruction[3] or [["alpha", "x"]]

    with pytest.raises(MalformedError, match=r"of another type|other arguments"):
        aotair.load(changed(linear, tmp_path, rename))


@pytest.mark.parametrize("version", [True, 5.0, "5", None, 1 << 40])
def test_a_format_is_a_number_that_the_runtime_knows(linear: Path, tmp_path: Path, version: object):
    copy = changed(linear, tmp_path, lambda program: None)
    write(body(copy), copy, version)
    with pytest.raises(FormatVersionError, match="a format that this runtime does not read"):
        aotair.load(copy)
