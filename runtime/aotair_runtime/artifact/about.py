"""What does a tensor of bytes say of the tensors beside it? A JSON object, with a version and values of known types."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ..errors import AotairError
from .json_file import distinct

NAME = "about"  # of that tensor
MOST_TEXT = 8 << 10  # characters of a string


@dataclass(frozen=True)
class AboutForm:
    """What has to be said, and what is raised where it is not: `missing`, `malformed` and `other_version` are the words
    of `error`. `most`: how many bytes it may be."""

    kinds: Mapping[str, type]
    version: int
    most: int
    error: type[AotairError]
    missing: str
    malformed: str
    other_version: str

    def tensor(self, said: Mapping[str, object]) -> torch.Tensor:
        """The tensor that says this, on the host."""
        written = json.dumps({"version": self.version, **said}, sort_keys=True).encode()
        return torch.frombuffer(bytearray(written), dtype=torch.uint8)

    def read(self, stored: torch.Tensor | None, where: str = "") -> dict[str, object]:
        """What a tensor says, which somebody else may have written, each of the type that it has to have. Raises
        `error`."""
        if stored is None:
            raise self.error(self.missing, where=where, expected=f"a tensor {NAME!r}")
        is_short = stored.dtype == torch.uint8 and stored.dim() == 1 and stored.numel() <= self.most
        if not is_short or not has_values(stored):
            raise self.error(self.malformed, where=where, expected="bytes of JSON")
        try:
            found = json.loads(bytes(stored.tolist()).decode("utf-8"), object_pairs_hook=distinct)
        except (ValueError, RecursionError) as error:
            raise self.error(self.malformed, where=where, got=str(error)[:80]) from error
        if not isinstance(found, dict) or type(found.get("version")) is not int or found["version"] != self.version:
            got = ascii(found.get("version"))[:20] if isinstance(found, dict) else "no object"
            raise self.error(self.other_version, where=where, expected=str(self.version), got=got)
        for name, kind in self.kinds.items():
            value = found.get(name)
            if type(value) is not kind or (isinstance(value, str) and len(value) > MOST_TEXT):
                expected, got = f"{name}: {kind.__name__}", ascii(value)[:80]
                raise self.error(self.malformed, where=where, expected=expected, got=got)
        return {name: found[name] for name in self.kinds}


def has_values(tensor: torch.Tensor) -> bool:
    """Whether there are numbers in memory, one for each place."""
    return tensor.layout == torch.strided and not tensor.is_meta
