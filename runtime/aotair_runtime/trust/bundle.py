"""What does `model.sig` hold? A Sigstore bundle with a DSSE envelope, as the OpenSSF model signing format has it; read
within bounds, because nobody has vouched for it yet."""

import base64
import binascii
import json
from dataclasses import dataclass
from typing import NoReturn

from ..artifact.json_file import distinct
from ..errors import SignatureError

MOST_SIGNATURE_BYTES = 4 << 20  # a signature of 10,000 files has 3 MB
MOST_CERTIFICATES = 8
_MOST_CERTIFICATE, _MOST_SIGNATURE = 16 << 10, 1 << 10
_MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_PAYLOAD_TYPE = "application/vnd.in-toto+json"


@dataclass(frozen=True)
class Bundle:
    """A signature of `signed`, which is the payload with its type, by a key (`hint`: the SHA-256 of its PEM, or empty)
    or by the first of the `certificates` (DER)."""

    payload: bytes
    signature: bytes
    hint: str
    certificates: tuple[bytes, ...]

    @property
    def signed(self) -> bytes:
        kind = _PAYLOAD_TYPE.encode()
        return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(self.payload), self.payload)


def read_bundle(data: bytes, where: str) -> Bundle:
    """Raises SignatureError for what is no bundle, or one of another kind."""
    whole = _Object(json_of(data, where), where, "the bundle")
    if whole.value.get("mediaType") != _MEDIA_TYPE:
        refuse("the bundle is of another media type", where, _MEDIA_TYPE, whole.value.get("mediaType"))
    whole.only("mediaType", "verificationMaterial", "dsseEnvelope")
    envelope, material = whole.child("dsseEnvelope"), whole.child("verificationMaterial")
    envelope.only("payload", "payloadType", "signatures")
    if envelope.value.get("payloadType") != _PAYLOAD_TYPE:
        refuse("the payload is of another type", where, _PAYLOAD_TYPE, envelope.value.get("payloadType"))
    (signature,) = envelope.children("signatures", 1)
    signature.only("sig", "keyid")
    hint, certificates = _signer(material)
    payload = envelope.bytes("payload", MOST_SIGNATURE_BYTES)
    return Bundle(payload, signature.bytes("sig", _MOST_SIGNATURE), hint, certificates)


def json_of(data: bytes, where: str) -> object:
    """Raises SignatureError where it is none, nests too deep, or says a name twice."""
    try:
        found: object = json.loads(data.decode("utf-8"), object_pairs_hook=distinct)
    except (ValueError, RecursionError) as error:
        raise SignatureError("the signature is not readable", where=where, got=str(error)[:200]) from error
    return found


def refuse(what: str, where: str, expected: str, got: object) -> NoReturn:
    raise SignatureError(what, where=where, expected=expected, got=repr(got)[:80], fix="sign the artifact again")


def _signer(material: "_Object") -> tuple[str, tuple[bytes, ...]]:
    """The hint of the key, or the certificates."""
    logged = material.value.get("tlogEntries") or material.value.get("timestampVerificationData")
    if logged or "certificate" in material.value:
        refuse("the signature is Sigstore's own", material.where, "one by a key or a certificate", "an entry of a log")
    material.only("publicKey", "x509CertificateChain", "tlogEntries", "timestampVerificationData")
    if "publicKey" in material.value and "x509CertificateChain" not in material.value:
        hint = material.child("publicKey").value.get("hint") or ""
        if not isinstance(hint, str):
            refuse("the hint of the key is no text", material.where, "the SHA-256 of its PEM", hint)
        return hint, ()
    if "publicKey" in material.value:
        refuse("the signature names two signers", material.where, "a key or a certificate", "both")
    chain = material.child("x509CertificateChain").children("certificates", MOST_CERTIFICATES)
    return "", tuple(item.bytes("rawBytes", _MOST_CERTIFICATE) for item in chain)


class _Object:
    """An object of the JSON, `name` in errors."""

    def __init__(self, value: object, where: str, name: str):
        if not isinstance(value, dict):
            refuse(f"{name} is no object", where, "an object", value)
        self.value: dict[str, object] = value
        self.where, self._name = where, name

    def only(self, *names: str) -> None:
        if more := sorted(self.value.keys() - set(names)):
            refuse(f"{self._name} says more than is read", self.where, " or ".join(names), more)

    def child(self, name: str) -> "_Object":
        return _Object(self.value.get(name), self.where, name)

    def children(self, name: str, most: int) -> "list[_Object]":
        found = self.value.get(name)
        if not isinstance(found, list) or not 1 <= len(found) <= most:
            count = len(found) if isinstance(found, list) else found
            refuse(f"{name} is no list of that length", self.where, f"1 to {most}" if most > 1 else "1", count)
        return [_Object(item, self.where, name) for item in found]

    def bytes(self, name: str, most: int) -> bytes:
        found = self.value.get(name)
        if not isinstance(found, str) or len(found) > -(-most // 3) * 4:
            refuse(f"{name} is no text of at most {most} bytes", self.where, "base64", found)
        try:
            return base64.b64decode(found, validate=True)
        except (binascii.Error, ValueError):
            refuse(f"{name} is not readable", self.where, "base64", found)
