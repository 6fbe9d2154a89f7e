"""Is the folder that is being opened the one that was signed? Asked before its program is parsed."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..artifact.digests import of_descriptor
from ..artifact.folder import Folder, unreadable
from ..errors import AddedFileError, AlteredError, ArgumentError, TruncatedError, UnsignedError
from ..format.schema import PROGRAM_FILE, SIGNATURE_FILE, WEIGHTS_FILE
from .bundle import MOST_SIGNATURE_BYTES, read_bundle
from .policy import TrustPolicy, system_policy
from .signer import check_signer
from .statement import signed_files

_AGAIN = "copy the artifact again, or sign it again"


class Gate:
    """What lets an artifact in: all `policies` have to trust its signer. `everything`: compare each file of it at once,
    and not only those that a load reads."""

    def __init__(self, policies: Sequence[TrustPolicy], everything: bool = True):
        self._policies, self._everything = policies, everything

    def admit(self, folder: Folder, program: bytes) -> Mapping[str, str]:
        """The files that were signed, with their digests, which those of the `program`'s bytes and of all other files,
        but for the weights, were compared with. Raises a subclass of ArtifactError."""
        if not folder.has(SIGNATURE_FILE):
            raise _unsigned("the artifact is not signed", folder.path)
        file = folder.file(SIGNATURE_FILE)
        bundle = read_bundle(file.content(MOST_SIGNATURE_BYTES), file.where)
        for policy in self._policies:
            check_signer(bundle, policy, file.where)
        signed = signed_files(bundle.payload, file.where)
        _check_names(folder, signed)
        _compare(folder, PROGRAM_FILE, hashlib.sha256(program).hexdigest(), signed)
        for name in signed if self._everything else ():
            if name not in (PROGRAM_FILE, WEIGHTS_FILE):
                opened = folder.file(name)
                with unreadable(opened.where):
                    _compare(folder, name, of_descriptor(opened.descriptor)(0, opened.nbytes), signed)
        return signed

    def refuse_unsigned(self, path: Path) -> None:
        """Raises UnsignedError for a checkpoint or an adapter, unless all policies let such in."""
        if not all(policy.unsigned_weights for policy in self._policies):
            raise _unsigned("checkpoints and adapters carry no signature", path)


def gate_for(trust: TrustPolicy | None, verify: object, *, everything: bool = True) -> Gate | None:
    """What a load has to pass under the caller's policy and the node's; None where there is neither. Raises
    PolicyError, and ArgumentError where `verify_weights` would leave bytes out that the signature is of, or goes by a
    signature that nobody asks for."""
    if not isinstance(trust, TrustPolicy | None):
        raise ArgumentError("trust= is wrong", expected="an aotair.TrustPolicy", got=repr(trust)[:80])
    policies = [policy for policy in (system_policy(), trust) if policy is not None]
    if not policies and verify == "signed-only":
        raise ArgumentError("verify_weights='signed-only' goes by a signature", expected="trust= beside it")
    if policies and verify in ("sampled", "length", False):
        raise ArgumentError(
            "a signature is of all bytes of the weights",
            expected="verify_weights='full' or 'signed-only', where a policy asks for signatures",
            got=repr(verify),
        )
    return Gate(policies, everything and verify != "signed-only") if policies else None


def _check_names(folder: Folder, signed: Mapping[str, str]) -> None:
    there = set(folder.names()) - {SIGNATURE_FILE}
    if missing := sorted(signed.keys() - there):
        where = str(folder.path / missing[0])
        raise TruncatedError("a file that was signed is missing", where=where, fix=_AGAIN)
    if added := sorted(there - signed.keys()):
        raise AddedFileError(
            "a file is there that was not signed",
            where=str(folder.path / added[0]),
            expected=f"the {len(signed)} files that were signed, and {SIGNATURE_FILE}",
            fix="remove it, or sign the artifact again",
        )


def _compare(folder: Folder, name: str, digest: str, signed: Mapping[str, str]) -> None:
    if signed[name] != digest:
        where = str(folder.path / name)
        raise AlteredError("the file is not the one that was signed", where=where, fix=_AGAIN)


def _unsigned(what: str, path: Path) -> UnsignedError:
    fix = "sign it with: aotair sign ARTIFACT --key KEY" if "not signed" in what else "build it: aotair build --like"
    return UnsignedError(what, where=str(path), expected="a signature that the policy trusts", fix=fix)
