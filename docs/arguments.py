"""Docstrings as pages show them: lines that begin with an argument's name and a colon become items of a list."""

import re
from typing import Any

import griffe

_ARGUMENT = re.compile(r"^(?=`[\w.]+`(?:, `[\w.]+`)*:)", re.MULTILINE)
_RAISES = re.compile(r"^(?=Raises )", re.MULTILINE)


class Arguments(griffe.Extension):
    """mkdocstrings names it in mkdocs.yml."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is None:
            return
        text = obj.docstring.value
        if _ARGUMENT.search(text):
            text = _ARGUMENT.sub("- ", text)
            text = re.sub(r"(?<=[^\n])\n(?=- `)", "\n\n", text)
        obj.docstring.value = _RAISES.sub("\n", text)
