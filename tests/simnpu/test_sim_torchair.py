"""Do the `air` ops of ours and of the real TorchAir get on with each other, whichever comes first?"""

import subprocess
import sys

import pytest

LOAD = """
import importlib.util, pathlib, sys, torch, torch_npu

root = pathlib.Path(torch_npu.__file__).parent / "dynamo" / "torchair"

def load(folder, name):
    package = f"torchair_{folder}"
    if package not in sys.modules:
        spec = importlib.util.spec_from_loader(package, None, is_package=True)
        sys.modules[package] = importlib.util.module_from_spec(spec)
        sys.modules[package].__path__ = [str(root / folder)]
    importlib.import_module(f"{package}.{name}")

def theirs():
    load("ops", "_record_wait")  # what else defines ops imports all of TorchAir, and protobuf

def ours():
    from aotair.ops import air
    air.define()
"""


@pytest.mark.parametrize("order", ["theirs(); ours()", "ours(); theirs()", "ours(); ours(); theirs(); theirs()"])
def test_either_may_come_first(order: str):
    schemas = (
        "print(*[getattr(torch.ops.air, n).default._schema for n in ('scope_enter', 'scope_exit', 'record', 'wait')])"
    )
    script = f"{LOAD}\n{order}\n{schemas}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "air::record(*, Device? device=None) -> Tensor air::wait(Tensor[] x) -> ()" in done.stdout


EXAMPLE = """
import simnpu, torch
simnpu.install()
import aotair, rules
from aotair import fusion
from aotair.builder import explain

with aotair.host_as_npu():
    assert torch.randn(2, device="npu").device.type == torch.randn(2).npu().device.type == "npu"
rules.norms_of_7168()
(rule,) = fusion.registered()
shapes = {"data1": [1, 1, WIDTH], "data2": [1, 1, WIDTH], "gamma": [WIDTH]}
found = explain({
    "name": "example", "model": {"factory": "rules:AddAndNorm", "dtype": "float16"}, "target": {"device": "npu"},
    "inputs": {name: {"shape": shape, "dtype": "float16"} for name, shape in shapes.items()},
}).counts()
print(found[rule.name], found["lift_add_rms_norm"])
"""


@pytest.mark.parametrize(("width", "counts"), [(7168, "(1, 0) (0, 0)"), (64, "(0, 1) (0, 1)")])
def test_the_example_of_a_rule_has_its_inputs_on_the_device(width: int, counts: str):
    script = f"import sys; sys.path[:0] = {sys.path!r}; WIDTH = {width}\n{EXAMPLE}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert counts in done.stdout
