"""What does a JSON object of a checkpoint say, field by field? It is untrusted: each field is checked as it is read."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aotair_runtime.artifact.json_file import json_object

from ...errors import ModelError

_MOST_BYTES = 1 << 26
_MOST_REPEATS = 3  # of a pattern's characters that repeat: a name is searched in the cube of its length at most
_REPEATS = re.compile(r"(?<!\\)[*+{]")
_NESTED = re.compile(r"(?<!\\)\)[*+?{]")
_LONGEST_PATTERN = 1000


def _repeats(pattern: str) -> int:
    return len(_REPEATS.findall(pattern))


@dataclass(frozen=True)
class Fields:
    """`values` of an object that lies in `file` under `path`, as quantization_config.weights."""

    file: Path
    path: str
    values: Mapping[str, object]

    def refused(self, field: str, expected: str, fix: str = "") -> ModelError:
        """The error that says what a field is, and what it would have to be."""
        name = f"{self.path}.{field}" if self.path else field
        got = repr(self.values[field])[:120] if field in self.values else "nothing"
        return ModelError(
            f"model.weights: the checkpoint's {name} is not served",
            where=str(self.file),
            expected=expected,
            got=got,
            fix=fix,
        )

    def one_of(self, field: str, served: Sequence[object], default: object = None) -> object:
        """The value of a field that may have some values alone."""
        value = self.values.get(field, default)
        value = default if value is None else value
        for one in served:
            if type(value) is type(one) and value == one:
                return value
        raise self.refused(field, " or ".join(json.dumps(one) for one in served))

    def number(self, field: str, low: int, high: int, default: int | None = None) -> int:
        """The value of a field that is a whole number between two, both included."""
        value = self.values.get(field, default)
        value = default if value is None else value
        if type(value) is not int or not low <= value <= high:
            raise self.refused(field, f"a whole number from {low} to {high}")
        return value

    def flag(self, field: str, default: bool) -> bool:
        """The value of a field that is true or false."""
        return bool(self.one_of(field, (True, False), default))

    def part(self, field: str) -> "Fields | None":
        """The object that a field holds; None where there is none."""
        value = self.values.get(field)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.refused(field, "an object")
        return Fields(self.file, f"{self.path}.{field}" if self.path else field, value)

    def parts(self, field: str) -> "Iterator[Fields]":
        """The objects that the object of a field holds."""
        found = self.part(field)
        if found is None or not found.values:
            raise self.refused(field, "an object that holds objects")
        for name in found.values:
            one = found.part(name)
            if one is None:
                raise found.refused(name, "an object")
            yield one

    def texts(self, field: str) -> tuple[str, ...]:
        """The texts of a list; none where the field is missing."""
        value = self.values.get(field)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.refused(field, "a list of names")
        return tuple(value)

    def refuse_unless_empty(self, *fields: str) -> None:
        """Raises ModelError where one of these fields says anything."""
        for field in fields:
            if self.values.get(field) not in (None, False, [], {}, ""):
                raise self.refused(field, "nothing")

    def pattern(self, field: str, text: str) -> re.Pattern[str]:
        """A regular expression that somebody else wrote. One that could take hours is refused."""
        try:
            if len(text) <= _LONGEST_PATTERN and not _NESTED.search(text) and _repeats(text) <= _MOST_REPEATS:
                return re.compile(text)
        except (re.error, OverflowError, RecursionError) as error:
            raise self.refused(field, "regular expressions", f"{text[:80]!r} is none: {error}") from error
        raise self.refused(
            field,
            f"regular expressions with at most {_MOST_REPEATS} repeats, none of them of a group",
            f"write the names of the modules instead of {text[:80]!r}",
        )


def read_fields(file: Path) -> Fields:
    """The object that a JSON file holds. Raises ModelError."""
    try:
        return Fields(file, "", json_object(file, _MOST_BYTES))
    except ValueError as error:
        raise ModelError(f"model.weights: {file.name} cannot be read as JSON: {error}", where=str(file)) from error
