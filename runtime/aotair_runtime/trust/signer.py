"""Was it signed by whom a policy trusts? All that needs the package `cryptography` is here."""

import datetime
import hashlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

from ..errors import ExpiredError, PolicyError, SignatureError, SignerError
from .bundle import MOST_CERTIFICATES, Bundle
from .policy import TrustPolicy

_HASHES = {"secp256r1": "SHA256", "secp384r1": "SHA384", "secp521r1": "SHA512"}
_KNOWN = ("basicConstraints", "keyUsage", "extendedKeyUsage", "subjectAltName")


class _Parts(NamedTuple):
    """Of `cryptography`, imported when the first signature is looked at."""

    x509: ModuleType
    verification: ModuleType
    serialization: ModuleType
    hashes: ModuleType
    ec: ModuleType
    invalid: type[Exception]


def check_signer(bundle: Bundle, policy: TrustPolicy, where: str) -> None:
    """Raises SignerError, ExpiredError or SignatureError where `bundle` was not made by whom the policy trusts, and
    PolicyError where the policy cannot be applied."""
    parts = _parts()
    if bundle.certificates:
        _verify(parts, _certified(parts, bundle, policy, where), bundle, where)
        return
    keys = [_key(parts, pem) for pem in policy.keys if isinstance(pem, bytes)]
    named = [key for key in keys if not bundle.hint or _hint(parts, key) == bundle.hint]
    if not named:
        raise SignerError(
            "the artifact is signed by another key",
            where=where,
            expected=f"one of {len(keys)} keys of the policy" if keys else "a certificate: the policy has no keys",
            got=f"the key {bundle.hint[:64]!r}",
            fix="add the signer's public key to the policy, if you trust it",
        )
    for key in named[:-1]:
        try:
            return _verify(parts, key, bundle, where)
        except SignatureError:
            continue
    _verify(parts, named[-1], bundle, where)


# ---- keys ------------------------------------------------------------------------------------------------------------


def _verify(parts: _Parts, key: Any, bundle: Bundle, where: str) -> None:
    try:
        key.verify(bundle.signature, bundle.signed, parts.ec.ECDSA(_hash(parts, key)))
    except parts.invalid as error:
        raise SignatureError(
            "the signature does not fit what it signs",
            where=where,
            expected="what the key of the policy, or of the certificate, has signed",
            got="a statement that was changed, or signed by another key",
            fix="copy the artifact again, or sign it again",
        ) from error


def _hash(parts: _Parts, key: Any) -> Any:
    return getattr(parts.hashes, _HASHES[key.curve.name])()


def _key(parts: _Parts, pem: bytes) -> Any:
    try:
        key = parts.serialization.load_pem_public_key(pem)
    except Exception as error:  # ValueError, or an error of the package's own
        raise PolicyError("a key of the policy is not readable", expected="a public key as PEM") from error
    return _elliptic(parts, key, PolicyError, "a key of the policy")


def _elliptic(parts: _Parts, key: object, error: type[PolicyError] | type[SignatureError], what: str) -> Any:
    if not isinstance(key, parts.ec.EllipticCurvePublicKey) or key.curve.name not in _HASHES:
        raise error(f"{what} is of another kind", expected="an elliptic curve: P-256, P-384 or P-521")
    return key


def _hint(parts: _Parts, key: Any) -> str:
    form = parts.serialization
    pem = key.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(pem).hexdigest()


# ---- certificates ----------------------------------------------------------------------------------------------------


def _certified(parts: _Parts, bundle: Bundle, policy: TrustPolicy, where: str) -> Any:
    """The key of the certificate that signed, once it leads to one of the policy's and has one of its names."""
    try:
        leaf, *others = (parts.x509.load_der_x509_certificate(data) for data in bundle.certificates)
        names, may_sign, unknown = _names(parts, leaf), _may_sign(parts, leaf), _unknown(leaf)
        key = leaf.public_key()
    except Exception as error:  # ValueError, or one of the many of the package's own
        raise SignatureError("a certificate is not readable", where=where, got=str(error)[:200]) from error
    given = [pem for pem in policy.certificates if isinstance(pem, bytes)]
    trusted = [one for pem in given for one in _pem_certificates(parts, pem)]
    if not trusted:
        raise SignerError("the artifact is signed by a certificate", where=where, expected="a key of the policy")
    _check_chain(parts, leaf, others, trusted, where)
    if unknown or not may_sign:
        got = unknown or "one for other uses"
        raise SignerError("the certificate is none for signing", where=where, expected="digitalSignature", got=got)
    if policy.names and not set(names) & set(policy.names):
        raise SignerError(
            "the artifact is signed under another name",
            where=where,
            expected=" or ".join(policy.names),
            got=", ".join(names)[:200] or "a certificate without a name",
        )
    return _elliptic(parts, key, SignatureError, "the certificate's key")


def _check_chain(parts: _Parts, leaf: Any, others: Sequence[Any], trusted: Sequence[Any], where: str) -> None:
    now = datetime.datetime.now(datetime.timezone.utc)
    if not leaf.not_valid_before_utc <= now <= leaf.not_valid_after_utc:
        is_early = now < leaf.not_valid_before_utc
        raise ExpiredError(
            "the certificate is not valid yet" if is_early else "the certificate has expired",
            where=where,
            expected=f"valid from {leaf.not_valid_before_utc} to {leaf.not_valid_after_utc}",
            got=f"{now:%Y-%m-%d %H:%M:%S} by this node's clock",
            fix="sign the artifact again, with a certificate that is valid",
        )
    if leaf in trusted:
        return
    fault = _chain_fault(parts, leaf, others, trusted, now)
    if fault is None:
        return
    if _chain_fault(parts, leaf, others, trusted, leaf.not_valid_before_utc) is None:
        raise ExpiredError("a certificate that vouches for the signer's has expired", where=where, got=fault[:200])
    raise SignerError(
        "the certificate leads to none that the policy trusts",
        where=where,
        expected=f"one of {len(trusted)} certificates of the policy",
        got=fault[:200],
        fix="add the certificate of its authority to the policy, if you trust it",
    )


def _chain_fault(
    parts: _Parts, leaf: Any, others: Sequence[Any], trusted: Sequence[Any], when: datetime.datetime
) -> str | None:
    """Why no chain leads from the leaf to a trusted certificate, as `cryptography` finds it."""
    rules = parts.verification
    builder = rules.PolicyBuilder().store(rules.Store(trusted)).time(when).max_chain_depth(MOST_CERTIFICATES)
    authority, signer = rules.ExtensionPolicy.webpki_defaults_ca(), rules.ExtensionPolicy.permit_all()
    verifier = builder.extension_policies(ca_policy=authority, ee_policy=signer).build_client_verifier()
    try:
        verifier.verify(leaf, list(others))
    except rules.VerificationError as error:
        return str(error)
    return None


def _pem_certificates(parts: _Parts, pem: bytes) -> list[Any]:
    try:
        return list(parts.x509.load_pem_x509_certificates(pem))
    except Exception as error:  # ValueError, or an error of the package's own
        raise PolicyError("a certificate of the policy is not readable", expected="certificates as PEM") from error


def _names(parts: _Parts, leaf: Any) -> list[str]:
    """How a certificate calls its owner: mail addresses, host names, URIs and the common name."""
    x509 = parts.x509
    names = [str(item.value) for item in leaf.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
    try:
        more = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return names
    kinds = (x509.RFC822Name, x509.DNSName, x509.UniformResourceIdentifier)
    return [*(str(name) for kind in kinds for name in more.get_values_for_type(kind)), *names]


def _may_sign(parts: _Parts, leaf: Any) -> bool:
    x509 = parts.x509
    found = {type(item.value): item.value for item in leaf.extensions}
    usage, wider = found.get(x509.KeyUsage), found.get(x509.ExtendedKeyUsage)
    code = x509.ExtendedKeyUsageOID.CODE_SIGNING if hasattr(x509, "ExtendedKeyUsageOID") else None
    return bool(usage is not None and usage.digital_signature) or bool(wider is not None and code in wider)


def _unknown(leaf: Any) -> str:
    """Extensions that must be understood and are not."""
    return ", ".join(item.oid._name for item in leaf.extensions if item.critical and item.oid._name not in _KNOWN)


def _parts() -> _Parts:
    try:
        from cryptography import x509
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509 import verification
    except ImportError as error:
        raise PolicyError(
            "signatures are verified with the package cryptography, which is not there",
            got=str(error),
            fix="pip install 'aotair-runtime[sign]'",
        ) from error
    return _Parts(x509, verification, serialization, hashes, ec, InvalidSignature)
