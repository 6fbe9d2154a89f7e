"""What is each input called while the model is exported? `batch.ids` is no name in Python."""

import keyword
import re

from ..recipe.entry import EntryJob


def keywords(job: EntryJob) -> dict[str, str]:
    """The keyword of each input, by its name in the recipe."""
    found: dict[str, str] = {}
    plain = {name for name in job.inputs if _is_keyword(name)}
    for name in job.inputs:
        word = re.sub(r"\W", "_", name)
        while name not in plain and (word in plain or word in found.values() or not _is_keyword(word)):
            word += "_"
        found[name] = word
    return found


def _is_keyword(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)
