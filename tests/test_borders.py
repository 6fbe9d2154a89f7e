"""The borders of the house: who may import what, who may read the environment, which names are public."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import ROOT

import aotair
import aotair_runtime

BUILDER, RUNTIME = ROOT / "aotair", ROOT / "runtime" / "aotair_runtime"
RUNTIME_MAY_IMPORT = {"torch", "msgpack", "safetensors", "aotair_runtime"}
# The stages of the line, earliest first: none imports a later one. `builder` alone knows the order.
LINE = ["recipe", "source", "export", "passes", "program", "prove", "pack", "builder"]


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def imports(file: Path) -> Iterator[tuple[str, int]]:
    """(module, level) of every import of a file, wherever it stands."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.module:
                yield node.module, node.level
            else:
                yield from ((alias.name, node.level) for alias in node.names)


@pytest.mark.parametrize("file", files(RUNTIME), ids=lambda f: f.name)
def test_the_runtime_imports_torch_msgpack_safetensors_and_the_standard_library(file: Path):
    allowed = RUNTIME_MAY_IMPORT | ({"torch_npu"} if file.name == "npu.py" else set())
    for module, level in imports(file):
        top = module.split(".")[0]
        assert level or top in allowed or top in sys.stdlib_module_names, f"{file.name} imports {module}"


def test_no_stage_imports_a_later_one():
    for place, stage in enumerate(LINE):
        paths = [BUILDER / f"{stage}.py"] if (BUILDER / f"{stage}.py").exists() else files(BUILDER / stage)
        later = set(LINE[place + 1 :])
        for file in paths:
            found = {module.split(".")[0] for module, level in imports(file) if level}
            assert not found & later, f"{file.name} imports {found & later}"


@pytest.mark.parametrize("file", files(BUILDER) + files(RUNTIME), ids=lambda f: f.name)
def test_nobody_reads_the_environment(file: Path):
    text = file.read_text()
    assert "os.environ" not in text and "getenv" not in text


def test_the_public_names():
    runtime = {"AotairError", "Limits", "Model", "Pool", "graph_pool", "load"}
    assert set(aotair_runtime.__all__) == runtime
    assert set(aotair.__all__) == runtime | {
        "CompilerConfig", "Recipe", "__version__", "build", "host_as_npu", "logger", "register_replacement",
    }  # fmt: skip
    for name in aotair.__all__:
        assert getattr(aotair, name) is getattr(aotair, name)
    assert callable(aotair.build), "aotair.build must stay the function at every access"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        aotair.nothing  # noqa: B018


def test_loading_and_calling_imports_no_builder(built):
    script = f"""
import sys, torch
before = set(sys.modules)
import aotair
model = aotair.load({str(built("encoder"))!r})
model(torch.ones(1, 3, dtype=torch.int64), torch.ones(1, 3, dtype=torch.int64))
heavy = ("click", "pydantic", "yaml", "rich", "sympy", "transformers", "torch._dynamo", "torch._inductor",
         "aotair.builder", "aotair.passes")
print([name for name in heavy if name in sys.modules])
print(sorted({{m.split(".")[0] for m in set(sys.modules) - before}} - sys.stdlib_module_names))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    heavy, new = done.stdout.splitlines()
    assert heavy == "[]"
    # msgpack is written in Cython, whose own modules come with it; an editable installation brings a finder.
    new = {name for name in ast.literal_eval(new) if not name.startswith(("_cython", "cython_", "__editable__"))}
    assert new == {"aotair", "aotair_runtime", "msgpack", "safetensors"}


def test_a_missing_builder_package_is_explained():
    script = """
import sys
sys.modules["pydantic"] = None
import aotair
try:
    aotair.build
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "pip install 'aotair[build]'" in done.stdout


def test_the_readme_names_every_file_of_the_map():
    _, _, rest = (ROOT / "README.md").read_text().partition("## The map")
    words = set(re.findall(r"\w+", rest.split("```")[1]))
    for folder in (BUILDER, RUNTIME):
        for file in files(folder):
            if not file.name.startswith("__"):
                assert file.stem in words, f"the README's map lacks {file.relative_to(ROOT)}"


def test_documents_are_there():
    for name in ("README.md", "FORMAT.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", ".ci/run"):
        assert (ROOT / name).is_file(), name
