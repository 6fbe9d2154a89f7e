"""Tables and texts for notebooks: whatever is in them is shown, and nothing of it is obeyed."""

from collections.abc import Sequence

from ..errors import in_line, shown


def html_table(head: Sequence[str], rows: Sequence[Sequence[object]], caption: str = "") -> str:
    """A table; `caption` stands above it."""
    above = f"<caption>{_cell(caption)}</caption>" if caption else ""
    names = "".join(f"<th>{_cell(name)}</th>" for name in head)
    lines = "".join(f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{above}<thead><tr>{names}</tr></thead><tbody>{lines}</tbody></table>"


def html_text(text: str) -> str:
    """A text of several lines as it is."""
    return f"<pre>{_escaped(shown(text))}</pre>"


def _cell(value: object) -> str:
    return _escaped(in_line(str(value)))


def _escaped(text: str) -> str:
    from html import escape  # with all the names that characters have: no load waits for them

    return escape(text)
