"""An artifact gets a signature of its files, in the OpenSSF model signing format, by the package `model-signing`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aotair_runtime.artifact.asked import AnyOf
from aotair_runtime.artifact.companions import check_companions
from aotair_runtime.artifact.folder import Folder
from aotair_runtime.artifact.open import Artifact, open_artifact, read_golden, read_programs
from aotair_runtime.format.schema import GOLDEN_FILE, SIGNATURE_FILE

from ..disk.place import new_file, refusals
from ..errors import SignError


@dataclass(frozen=True)
class Signer:
    """Files with a private key, its password, and the certificate of the key with those that vouch for it."""

    key: Path
    password: Path | None = None
    certificate: Path | None = None
    chain: tuple[Path, ...] = ()


def sign_artifact(path: Path, signer: Signer) -> int:
    """Write `model.sig` into the artifact, once all its files are what its program says; how many were signed. Raises
    SignError, an ArtifactError or a WriteError."""
    artifact = open_artifact(path, asked=AnyOf())
    folder = Folder(path)
    for program in read_programs(path):
        if any(file.name == GOLDEN_FILE for file in program.files):
            read_golden(Artifact(path, program, (), folder))
    check_companions(folder, artifact.program)
    files = sorted(set(folder.names()) - {SIGNATURE_FILE})
    folder.close()
    config, hashing = _config(signer)
    with new_file(path / SIGNATURE_FILE, beside=path) as aside, refusals(path):
        hashing.set_ignored_paths(paths=[SIGNATURE_FILE], ignore_git_paths=False)
        try:
            config.set_hashing_config(hashing).sign(path, aside)
        except ValueError as error:  # a link, or a file that went away
            raise SignError(f"it cannot be signed: {error}", where=str(path)) from error
    return len(files)


def _config(signer: Signer) -> tuple[Any, Any]:
    """How model-signing signs, and how it takes the digests."""
    try:
        from model_signing import hashing, signing
    except ImportError as error:
        raise SignError(
            "artifacts are signed with the package model-signing",
            got=str(error),
            fix="pip install 'aotair[sign]'",
        ) from error
    make: Any = signing.Config  # types that the package has are not those that it takes
    digests: Any = hashing.Config
    try:
        if signer.certificate is None:
            password = None if signer.password is None else signer.password.read_bytes().rstrip(b"\r\n")
            config = make().use_elliptic_key_signer(private_key=signer.key, password=password)
        else:
            config = make().use_certificate_signer(
                private_key=signer.key,
                signing_certificate=signer.certificate,
                certificate_chain=signer.chain or (signer.certificate,),  # it takes no empty chain
            )
    except OSError as error:
        raise SignError(f"a file cannot be read: {error.strerror}", where=str(error.filename)) from error
    except (ValueError, TypeError, AttributeError) as error:  # no key, another kind of key, a password too many or few
        what = "the key or the certificate cannot be used"
        expected = "a private key of P-256, P-384 or P-521 as PEM, and a certificate of it"
        raise SignError(what, where=str(signer.key), expected=expected, got=str(error)[:200]) from error
    return config, digests()
