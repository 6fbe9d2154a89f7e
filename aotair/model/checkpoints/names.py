"""Which modules does a configuration mean by the names and patterns that it lists?"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .fields import Fields

_PATTERN = "re:"


@dataclass(frozen=True)
class Names:
    """Names of modules, names of classes, and patterns that a module's name begins with."""

    plain: tuple[str, ...]
    patterns: tuple[re.Pattern[str], ...]

    def has(self, module: str, kind: str) -> bool:
        """Whether a module of that name and class is meant."""
        return self.rank(module, kind) is not None

    def rank(self, module: str, kind: str) -> int | None:
        """How closely a module is meant: 0 by its name, 1 by a pattern, 2 by its class; None where it is not."""
        if module in self.plain:
            return 0
        if any(pattern.match(module) for pattern in self.patterns):
            return 1
        return 2 if kind in self.plain else None


def names_of(fields: Fields, field: str) -> Names:
    """The names that a list of a configuration holds; those that begin with re: are patterns."""
    texts: Sequence[str] = fields.texts(field)
    patterns = tuple(fields.pattern(field, text.removeprefix(_PATTERN)) for text in texts if text.startswith(_PATTERN))
    return Names(tuple(text for text in texts if not text.startswith(_PATTERN)), patterns)
