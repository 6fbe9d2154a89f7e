"""The borders of the house: who may import what, who may read the environment, which names are public."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from cases import ROOT

import aotair
import aotair_runtime

BUILDER, RUNTIME = ROOT / "aotair", ROOT / "runtime" / "aotair_runtime"
RUNTIME_MAY_IMPORT = {"torch", "msgpack", "safetensors", "aotair_runtime"}
# Where a device, a signature or the caller asks for it.
OPTIONAL = {"npu.py": {"torch_npu"}, "signer.py": {"cryptography"}, "metrics.py": {"opentelemetry"}}
# The folders and files of both packages, in the order in which they may import each other: only what comes before.
ORDER = {
    BUILDER: [
        "errors", "disk", "log", "summary", "share", "ops", "target", "graph", "fusion", "recipe", "model", "parallel",
        "export", "passes", "lower", "plan", "emit", "promise", "prologue", "stored", "program", "stored_once", "prove",
        "pack", "united", "fingerprint", "reuse", "tools", "hf", "chat", "buckets", "diff", "debugger", "report",
        "explore", "serving", "one_mesh", "builder", "cluster", "commands", "cli", "__main__", "__init__",
    ],
    RUNTIME: [
        "version", "errors", "format", "confine", "devices", "steps", "artifact", "trust", "memory", "settings",
        "ranks", "capture", "call", "weights", "report", "profile", "snapshot", "handover", "model", "metrics",
        "fitness", "__init__",
    ],
}  # fmt: skip


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
    allowed = RUNTIME_MAY_IMPORT | OPTIONAL.get(file.name, set())
    for module, level in imports(file):
        top = module.split(".")[0]
        assert level or top in allowed or top in sys.stdlib_module_names, f"{file.name} imports {module}"


def imported(file: Path, package: Path) -> Iterator[str]:
    """What of its own package a file imports, wherever that stands: the folder or file at the top."""
    place = file.relative_to(package).parts[:-1]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            above = place[: len(place) - node.level + 1]
            parts = (*above, *(node.module.split(".") if node.module else ()))
            yield from [parts[0]] if parts else [alias.name for alias in node.names]


@pytest.mark.parametrize("package", ORDER, ids=lambda p: p.name)
def test_nobody_imports_what_comes_later(package: Path):
    order = ORDER[package]
    for file in files(package):
        mine = file.relative_to(package).parts[0].removesuffix(".py")
        later = set(order[order.index(mine) + 1 :])
        found = set(imported(file, package)) - {mine}
        assert found <= set(order), f"{file.name} imports {found - set(order)}, which has no place in ORDER"
        assert not found & later, f"{file.relative_to(package)} imports {found & later}, which come later"


@pytest.mark.parametrize("file", files(BUILDER) + files(RUNTIME), ids=lambda f: f.name)
def test_nobody_reads_the_environment(file: Path):
    text = file.read_text()
    assert "os.environ" not in text and "getenv" not in text


MOVES = re.compile(r"\b(os\.(replace|rename|renames|link|symlink)|shutil\.(move|rmtree)|tempfile\.\w+)\(")


@pytest.mark.parametrize("file", files(BUILDER) + files(RUNTIME), ids=lambda f: f.name)
def test_only_the_folder_disk_puts_files_into_their_places(file: Path):
    assert file.parent == BUILDER / "disk" or not MOVES.search(file.read_text())


@pytest.mark.parametrize("package, project", [(BUILDER, ROOT), (RUNTIME, ROOT), (RUNTIME, ROOT / "runtime")])
def test_a_package_and_its_wheel_say_that_they_are_typed(package: Path, project: Path):
    assert (package / "py.typed").is_file()
    assert f'"{package.name}" = ["py.typed"]' in (project / "pyproject.toml").read_text()


PACKAGES = {BUILDER: "aotair", ROOT / "recipes": "aotair.recipes", RUNTIME: "aotair_runtime"}


@pytest.mark.parametrize("project, sources", [(ROOT, PACKAGES), (ROOT / "runtime", {RUNTIME: "aotair_runtime"})])
def test_a_wheel_holds_every_folder_of_its_packages(project: Path, sources: dict[Path, str]):
    text = (project / "pyproject.toml").read_text()
    named = ast.literal_eval(re.findall(r"^packages = (\[.*?\])", text, re.DOTALL | re.MULTILINE)[0])
    folders = {
        ".".join((name, *file.parent.relative_to(source).parts))
        for source, name in sources.items()
        for file in source.rglob("*")
        if file.suffix in (".py", ".txt")
    }
    assert sorted(folders) == named


def test_the_public_names():
    runtime = {"AotairError", "Limits", "Model", "Pool", "TrustPolicy", "Verdict", "check", "graph_pool", "load"}
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


def test_the_readme_names_every_folder_of_the_map():
    _, _, rest = (ROOT / "README.md").read_text().partition("## The map")
    words = set(re.findall(r"\w+", rest.split("```")[1]))
    for package in (BUILDER, RUNTIME):
        for file in files(package):
            folder = file.parent.relative_to(package)
            named = folder.name if folder.parts else file.stem
            assert named in words or file.stem.startswith("__"), f"the README's map lacks {file.relative_to(ROOT)}"


def test_documents_are_there():
    for name in ("README.md", "FORMAT.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "Makefile", ".ci/run"):
        assert (ROOT / name).is_file(), name


def test_the_hooks_before_a_commit_run_what_lint_runs():
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    lint = (ROOT / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0].splitlines()[1:]
    assert local["repo"] == "local", "nothing is fetched from elsewhere"
    assert [hook["entry"] for hook in local["hooks"]] == [line.strip().replace("$(BIN)", ".venv/bin") for line in lint]


def test_both_packages_are_under_the_licence_of_the_repository():
    text = (ROOT / "LICENSE").read_text()
    assert text.lstrip().startswith("Apache License") and text == (ROOT / "runtime" / "LICENSE").read_text()
    for file in (ROOT / "pyproject.toml", ROOT / "runtime" / "pyproject.toml"):
        assert 'license = "Apache-2.0"\nlicense-files = ["LICENSE"]\n' in file.read_text(), file


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of its body; a docstring does not count."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


@pytest.mark.parametrize("package", [BUILDER, RUNTIME], ids=lambda folder: folder.name)
def test_functions_stay_under_40_lines(package: Path):
    long = {
        f"{file.relative_to(package)}: {node.name}": lines
        for file in files(package)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (lines := lines_of(node)) >= 40
    }
    assert not long


# Where the tests of a folder's modules lie, and the modules that have none of their own.
TESTED = {"passes": ("passes", set()), "fusion/rules": ("rules", {"__init__", "npu"})}
NAMED = [
    (module, ROOT / "tests" / "builder" / tests / f"test_{module.stem}.py")
    for folder, (tests, without) in TESTED.items()
    for module in files(BUILDER / folder)
    if module.stem not in without
]


@pytest.mark.parametrize(("module", "tests"), NAMED, ids=lambda f: f.stem)
def test_each_pass_and_each_rule_has_a_test_file_of_its_name(module: Path, tests: Path):
    assert tests.is_file(), f"{module.relative_to(ROOT)} has no {tests.relative_to(ROOT)}"


LINE = ("export", "lower", "emit", "plan", "prove")  # the folders of the stages
# And the stages of one file.
ALONE = ("prologue", "stored", "program", "pack", "promise", "fingerprint", "reuse", "builder")
STAGES = [
    *(module for folder in LINE for module in files(BUILDER / folder) if module.stem != "__init__"),
    *(BUILDER / f"{name}.py" for name in ALONE),
]


@pytest.mark.parametrize("module", STAGES, ids=lambda f: str(f.relative_to(BUILDER)))
def test_each_module_of_the_line_has_a_test_file_of_its_name(module: Path):
    tests = ROOT / "tests" / "builder" / module.parent.relative_to(BUILDER) / f"test_{module.stem}.py"
    assert tests.is_file(), f"{module.relative_to(ROOT)} has no {tests.relative_to(ROOT)}"
