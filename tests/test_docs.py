"""The documents: every block of code in them runs as it stands there, and prints what they say that it prints.

The blocks of a page run in order, in one namespace and one empty folder. ```python blocks are executed; a ```text block
right after one holds what it prints. In ```console blocks each `$ aotair …` is run; the lines after it are what it
prints. A line `…` in either stands for any lines, `…` within a line for any text. A block with a `title` is a file of
that name, written there first; ```yaml blocks without one are parts of recipes, and are checked as such. `<!-- not run:
reason -->` before a block says why it cannot run here.
"""

import contextlib
import io
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import yaml
from cases import ROOT
from click.testing import CliRunner

import aotair
from aotair.cli import main
from aotair.errors import RecipeError
from aotair.fusion import register
from aotair.recipe.read import parse_recipe

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN = ("python", "console", "yaml")
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<head>[a-z]+[^\n]*)\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
_REASON = re.compile(r"<!-- not run: ((?:(?!-->).)+) -->\s*\Z", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of code on a page, and why it is not run, if so."""

    page: Path
    line: int
    language: str
    title: str | None
    text: str
    reason: str | None

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in _FENCE.finditer(text):
        language, _, options = found["head"].partition(" ")
        title = re.search(r'title="([^"]+)"', options)
        reason = _REASON.search(text[: found.start()])
        yield Block(
            page,
            text.count("\n", 0, found.start()) + 1,
            language,
            title and title[1],
            textwrap.dedent(found["body"]),
            reason and " ".join(reason[1].split()),
        )


def said(expected: str, got: str, where: str) -> None:
    """What was printed is what the page says, but for `…`, and for how wide a table is."""
    expected, got = (re.sub(r"-{3,}", "---", re.sub(r" *\n", "\n", text).strip()) for text in (expected, got))
    expected, got = (re.sub(r"(?<=\S) {2,}", " ", text) for text in (expected, got))
    lines = [".*?".join(map(re.escape, line.split("…"))) + "\n" for line in expected.split("\n")]
    pattern = "".join(r"(?:.*\n)*?" if line == ".*?\n" else line for line in lines)
    assert re.fullmatch(pattern, f"{got}\n"), f"{where} says\n{expected}\nbut this came\n{got}"


def run_python(block: Block, namespace: dict, after: Block | None) -> None:
    printed = io.StringIO()
    code = compile("\n" * block.line + block.text, str(block.page), "exec")
    with contextlib.redirect_stdout(printed):
        exec(code, namespace)
    if after is not None and after.language == "text":
        said(after.text, printed.getvalue(), after.where)


def run_console(block: Block) -> None:
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        words = shlex.split(command, comments=True)
        assert words[0] == "aotair", f"{block.where}: only aotair's own commands are run; mark the block `not run`"
        result = CliRunner().invoke(main, words[1:], prog_name="aotair")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        if expected.strip():
            said(expected, result.output, block.where)
        else:
            assert result.exit_code == 0, f"{block.where}: {command}\n{result.output}"


def check_recipe(block: Block) -> None:
    """A part of a recipe has keys that there are, and values that they take."""
    some = {"x": {"shape": ["batch", 4], "dtype": "float32"}}
    part = yaml.safe_load(block.text)
    whole = {"name": "some", "model": {"factory": "some:model"}, **part}
    if "pretrained" in whole["model"]:
        whole.setdefault("entry_points", {"prefill": {"buckets": {"batch": [1], "seq": [8]}}})
    else:
        whole["model"].setdefault("factory", "some:model")
    if "entry_points" not in whole:
        whole.setdefault("inputs", some)
        dims = {size for given in whole["inputs"].values() for size in given["shape"] if isinstance(size, str)}
        whole.setdefault("buckets", {dim: [8] for dim in dims})
    try:
        parse_recipe(whole)
    except RecipeError as error:
        raise AssertionError(f"{block.where}: {error}") from error


NOT_RUN = [block for page in PAGES for block in blocks(page) if block.reason]


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in, and nothing left behind in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(register, "_rules", [])
    monkeypatch.setattr(register, "_of_function", {})
    modules, level = set(sys.modules), aotair.logger.level
    yield tmp_path
    aotair.logger.setLevel(level)
    for name in set(sys.modules) - modules:
        if (file := getattr(sys.modules[name], "__file__", None)) and file.startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_runs(page: Path, alone: Path):
    found = [*blocks(page)]
    torch.manual_seed(0)
    namespace: dict = {"__name__": "__main__"}
    for block, after in zip(found, [*found[1:], None]):
        if block.reason:
            continue
        if block.title:
            file = alone / block.title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)
        elif block.language == "python":
            run_python(block, namespace, after)
        elif block.language == "console":
            run_console(block)
        elif block.language == "yaml":
            check_recipe(block)


@pytest.mark.parametrize("block", NOT_RUN, ids=lambda block: block.where)
def test_a_block_that_cannot_run_here_says_why(block: Block):
    assert block.language in RUN, f"{block.where}: nothing runs {block.language} blocks"
    pytest.skip(f"{block.where}: {block.reason}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_languages_of_blocks_are_known(page: Path):
    known = {*RUN, "text", "svg"}
    assert {block.language for block in blocks(page)} <= known


def test_a_wrong_output_is_found(tmp_path: Path):
    for expected in ("one\n…\nthree", "one\ntwo\nthree", "one\nt…o\n…\nthree\n…"):
        said(expected, "one\ntwo \nthree\n", "here")
    for expected in ("one\n…\nfour", "one\nth…\nthree", "one…three"):
        with pytest.raises(AssertionError, match="but this came"):
            said(expected, "one\ntwo\nthree\n", "here")


def test_the_readme_is_short():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120, f"{len(lines)} lines"
    assert not [number for number, line in enumerate(lines, 1) if len(line) > 100]


def test_links_between_documents_lead_somewhere():
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for link in re.findall(r"\]\(([^)#:\s]+)[^):]*\)", page.read_text()):
            target = Path(os.path.normpath(page.parent / link))
            assert target.exists(), f"{page.relative_to(ROOT)} links to {link}"


def test_what_is_made_from_the_code_is_there():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import hooks
    finally:
        sys.path.remove(str(ROOT / "docs"))
    made = {name: make() for name, make in hooks.PARTS.items()}
    assert "| `memory_budget` |" in made["recipe keys"] and "`config.debug.aclgraph`" in made["recipe keys"]
    assert "## aotair build" in made["commands"] and "`--max-rewrites N`" in made["commands"]
    for file in [*(ROOT / "aotair").rglob("*.py"), *(ROOT / "runtime" / "aotair_runtime").rglob("*.py")]:
        assert file.name == "__init__.py" or f"| `{file.name}` |" in made["map of files"], file
    assert "| `lift_rms_norm` |" in made["fusion rules"]
    used = {name for page in PAGES for name in re.findall(r"<!-- generated: (.+?) -->", page.read_text())}
    assert used == set(made), "each is on a page, and each page's is made"
