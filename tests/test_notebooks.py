"""The notebooks of the documentation: each runs from top to bottom, and shows what it showed when it was written."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from marks import long

NOTEBOOKS = sorted((Path(__file__).parent.parent / "docs" / "notebooks").glob("*.ipynb"))
_VARIES = " at 0x"  # the address of an object that has no text of its own


@pytest.mark.parametrize(
    "file", [file if file.stem == "own-pass" else long(file) for file in NOTEBOOKS], ids=lambda file: file.stem
)
def test_a_notebook_shows_what_it_showed(file: Path, tmp_path: Path):
    stored, again = nbformat.read(file, 4), nbformat.read(file, 4)
    nbclient.NotebookClient(again, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    want, got = list(_shown(stored)), list(_shown(again))
    assert any(text for text in want) and got == want


def test_tables_are_html():
    """What has more than a line to say is a table in a notebook."""
    kinds = [kind for file in NOTEBOOKS for cell in _code(nbformat.read(file, 4)) for kind in _html(cell)]
    assert sum("<table" in text for text in kinds) >= 5


def _code(notebook: Any) -> Iterator[Any]:
    return (cell for cell in notebook.cells if cell.cell_type == "code")


def _html(cell: Any) -> Iterator[str]:
    return (output.data["text/html"] for output in cell.outputs if "text/html" in output.get("data", {}))


def _shown(notebook: Any) -> Iterator[list[str]]:
    """Of each cell what it printed and what it is, as text."""
    for cell in _code(notebook):
        texts = [_text(output) for output in cell.outputs if output.get("name") != "stderr"]
        yield [text for text in texts if _VARIES not in text]


def _text(output: Mapping[str, Any]) -> str:
    return str(output["text"] if "text" in output else output["data"].get("text/plain", ""))
