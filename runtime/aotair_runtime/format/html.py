"""Tables and texts for notebooks: whatever is in them is shown, and nothing of it is obeyed."""

import html
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
    return f"<pre>{html.escape(shown(text))}</pre>"


def _cell(value: object) -> str:
    return html.escape(in_line(str(value)))
