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
