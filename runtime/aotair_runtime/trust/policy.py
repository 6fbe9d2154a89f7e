"""Whom does a loader trust? What a caller, or the node, says of it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..artifact.json_file import json_object
from ..errors import PolicyError

# The node's own policy, which holds for every load beside the caller's; who may write there is who may change it.
SYSTEM_POLICY = Path("/etc/aotair/trust.json")
_MOST_BYTES = 1 << 20
_BEGIN = "-----BEGIN"


@dataclass(frozen=True)
class TrustPolicy:
    """Whose artifacts may be loaded: `load(trust=…)`.

    `keys`: public keys (elliptic curves P-256, P-384, P-521), and `certificates`: those of authorities, or of signers
    themselves; each as PEM or the path of a PEM file. One of them all has to stand behind the signature. `names`: with
    certificates, whose: the mail address, host name, URI or common name of the signer's certificate; empty: anybody's
    whom the authority vouches for. `unsigned_weights`: whether `load_weights` and `load_adapter` take checkpoints
    too, which carry no signature; the weights of signed artifacts are taken in any case.

    Raises PolicyError where a file cannot be read, or where nobody is trusted.
    """

    keys: Sequence[str | Path | bytes] = ()  # bytes once they were read
    certificates: Sequence[str | Path | bytes] = ()
    names: Sequence[str] = ()
    unsigned_weights: bool = False

    def __post_init__(self) -> None:
        keys, certificates = (tuple(_pem(item) for item in _listed(given)) for given in (self.keys, self.certificates))
        names = tuple(_listed(self.names))
        if not keys and not certificates:
            raise PolicyError("the policy trusts nobody", expected="keys or certificates")
        if not all(isinstance(name, str) for name in names) or (names and not certificates):
            raise PolicyError("names are those of certificates", expected="texts, beside certificates", got=str(names))
        if not isinstance(self.unsigned_weights, bool):
            raise PolicyError("unsigned_weights is wrong", expected="True or False", got=repr(self.unsigned_weights))
        for name, value in (("keys", keys), ("certificates", certificates), ("names", names)):
            object.__setattr__(self, name, value)

    @classmethod
    def from_file(cls, file: str | Path) -> "TrustPolicy":
        """The policy in a JSON file: an object with `keys`, `certificates`, `names` and `unsigned_weights`, all as
        above; paths count from the file's folder. Raises PolicyError."""
        file = Path(file)
        try:
            found = json_object(file, _MOST_BYTES)
        except ValueError as error:
            raise PolicyError("the policy is not readable", where=str(file), got=str(error)) from error
        known = {"keys", "certificates", "names", "unsigned_weights"}
        if more := sorted(found.keys() - known):
            raise PolicyError("unknown fields", where=str(file), expected=", ".join(sorted(known)), got=str(more)[:200])
        lists = {name: _texts(found, name, file) for name in ("keys", "certificates", "names")}
        paths = {name: [_from(file.parent, text) for text in lists[name]] for name in ("keys", "certificates")}
        unsigned = found.get("unsigned_weights", False)
        return cls(names=lists["names"], unsigned_weights=unsigned, **paths)  # type: ignore[arg-type]  # checked there


def system_policy() -> TrustPolicy | None:
    """The node's own policy. Raises PolicyError where there is one that cannot be read: nothing is loaded then."""
    try:
        os.lstat(SYSTEM_POLICY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise PolicyError("the node's policy is not readable", where=str(SYSTEM_POLICY), got=str(error)) from error
    return TrustPolicy.from_file(SYSTEM_POLICY)


def _listed(given: object) -> Sequence[str | Path | bytes]:
    if not isinstance(given, (list, tuple)) or not all(isinstance(item, (str, Path, bytes)) for item in given):
        raise PolicyError("keys, certificates and names are lists", got=repr(given)[:80])
    return given


def _pem(item: str | Path | bytes) -> bytes:
    if isinstance(item, bytes):
        return item
    if isinstance(item, str) and item.lstrip().startswith(_BEGIN):
        return item.encode()
    try:
        with open(item, "rb") as stream:
            return stream.read(_MOST_BYTES)
    except (OSError, ValueError) as error:
        raise PolicyError("a key or certificate cannot be read", where=str(item)[:200], got=str(error)) from error


def _texts(found: dict[str, object], name: str, file: Path) -> list[str]:
    value = found.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise PolicyError(f"{name} is no list of texts", where=str(file), got=repr(value)[:80])
    return value


def _from(folder: Path, text: str) -> str | Path:
    return text if text.lstrip().startswith(_BEGIN) else folder / text
