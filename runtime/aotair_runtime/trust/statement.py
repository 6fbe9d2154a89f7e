"""Which files does a signature vouch for? The in-toto statement that it signs, with a digest for each of them."""

import hashlib
import re

from ..artifact.folder import MOST_FILES
from ..format.schema import PROGRAM_FILE, WEIGHTS_FILE
from .bundle import json_of, refuse

_TYPE = "https://in-toto.io/Statement/v1"
_PREDICATE = "https://model_signing/signature/v1.0"
_HEXADECIMAL = re.compile(r"[0-9a-f]{64}")


def signed_files(payload: bytes, where: str) -> dict[str, str]:
    """The files by their names within the artifact, each with its SHA-256. Read after the signature was verified.
    Raises SignatureError where the statement is of another kind."""
    found = json_of(payload, where)
    if not isinstance(found, dict) or found.get("_type") != _TYPE or found.get("predicateType") != _PREDICATE:
        got = [found.get("_type"), found.get("predicateType")] if isinstance(found, dict) else found
        refuse("the signature is of something else than a model", where, _PREDICATE, got)
    predicate = found.get("predicate")
    said = predicate.get("serialization") if isinstance(predicate, dict) else None
    if not isinstance(said, dict) or (said.get("method"), said.get("hash_type")) != ("files", "sha256"):
        refuse("the files were signed in another way", where, "whole files by their SHA-256", said)
    assert isinstance(predicate, dict)
    files = _files(predicate.get("resources"), where)
    digest = hashlib.sha256(b"".join(map(bytes.fromhex, files.values()))).hexdigest()
    if _subject(found) != digest:
        refuse("the statement contradicts itself", where, f"the digest {digest} of its files", _subject(found))
    if not {PROGRAM_FILE, WEIGHTS_FILE} <= files.keys():
        refuse("the signature is of no artifact", where, f"{PROGRAM_FILE} and {WEIGHTS_FILE}", sorted(files)[:4])
    return files


def _files(resources: object, where: str) -> dict[str, str]:
    if not isinstance(resources, list) or len(resources) > MOST_FILES:
        refuse("the statement lists no files, or too many", where, f"at most {MOST_FILES}", type(resources).__name__)
    files: dict[str, str] = {}
    for item in resources:
        name, digest = (item.get("name"), item.get("digest")) if isinstance(item, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(digest, str) or not _HEXADECIMAL.fullmatch(digest):
            refuse("a file has no name or no digest", where, "a name, and a SHA-256 in hexadecimal", item)
        if item.get("algorithm") != "sha256" or name in files:
            refuse("a file stands there twice, or with another digest", where, "sha256, once", item)
        files[name] = digest
    return files


def _subject(statement: dict[str, object]) -> object:
    subjects = statement.get("subject")
    if not isinstance(subjects, list) or len(subjects) != 1 or not isinstance(subjects[0], dict):
        return None
    digest = subjects[0].get("digest")
    return digest.get("sha256") if isinstance(digest, dict) else None
