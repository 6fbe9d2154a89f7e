"""Only what somebody has signed whom the policy trusts is loaded, and each way of not being that has its own error."""

import base64
import copy
import dataclasses
import datetime
import hashlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import safetensors.torch
import torch
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from model_signing import hashing, signing, verifying
from several_meshes import DEEP, built

import aotair
from aotair.cli import main
from aotair_runtime import TrustPolicy
from aotair_runtime.artifact import open as opening
from aotair_runtime.errors import (
    AddedFileError,
    AlteredError,
    ArgumentError,
    ArtifactError,
    ExpiredError,
    MalformedError,
    PolicyError,
    SignatureError,
    SignerError,
    TruncatedError,
    UnsignedError,
)
from aotair_runtime.format import codec
from aotair_runtime.trust import policy as policies
from aotair_runtime.weights.golden import replay_golden

INPUTS = {"input": {"shape": [1, 4], "dtype": "float32"}}
DAY = datetime.timedelta(days=1)
NOW = datetime.datetime.now(datetime.timezone.utc)


class Owner(NamedTuple):
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.PEM, form)


def write_key(folder: Path, name: str, key=None, password: bytes = b"") -> Path:
    key = key or ec.generate_private_key(ec.SECP256R1())
    secret = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    file = folder / name
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret))
    file.with_suffix(".pub").write_bytes(pem_of(key))
    return file


def certified(name: str, by: Owner | None = None, *, ca=False, begin=-DAY, end=30 * DAY, mail="", signs=True) -> Owner:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder(by.certificate.subject if by else subject, subject, key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(NOW + begin)
    builder = builder.not_valid_after(NOW + end).add_extension(x509.BasicConstraints(ca, None), True)
    uses = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
         "decipher_only"), False,
    )  # fmt: skip
    usage = x509.KeyUsage(digital_signature=signs and not ca, key_cert_sign=ca, crl_sign=ca, **uses)
    builder = builder.add_extension(usage, True)
    if mail:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.RFC822Name(mail)]), False)
    return Owner(builder.sign(by.key if by else key, hashes.SHA256()), key)


def pem(*owners: Owner) -> bytes:
    return b"".join(owner.certificate.public_bytes(serialization.Encoding.PEM) for owner in owners)


def made(path: Path, value: float) -> Path:
    model = torch.nn.Linear(4, 2)
    torch.nn.init.constant_(model.weight, value)
    (path.parent / "labels.txt").write_text("a label")
    return aotair.build(out=path, model=model, name="it", inputs=INPUTS, files=[str(path.parent / "labels.txt")])


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("trust") / "it.aotair", 1.0)


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "it.aotair"))


def command(*arguments: object):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def sign(path: Path, *arguments: object) -> None:
    done = command("sign", path, *arguments)
    assert done.exit_code == 0, done.output


@pytest.fixture
def signed(path: Path, tmp_path: Path) -> Path:
    sign(path, "--key", write_key(tmp_path, "a.pem"))
    return path


@pytest.fixture
def trust(signed: Path, tmp_path: Path) -> TrustPolicy:
    return TrustPolicy(keys=[tmp_path / "a.pub"])


# ---- by a key --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("curve", [ec.SECP256R1, ec.SECP384R1, ec.SECP521R1])
def test_what_is_signed_by_a_trusted_key_is_loaded(path: Path, tmp_path: Path, curve):
    file = write_key(tmp_path, "k.pem", ec.generate_private_key(curve()))
    sign(path, "--key", file)
    trust = TrustPolicy(keys=[file.with_suffix(".pub")])
    with aotair.load(path, trust=trust) as model:
        assert torch.isfinite(model(torch.ones(1, 4))).all()
    aotair.load(path, trust=trust, verify_weights="signed-only").close()
    aotair.load(path).close()  # who asks for no signature is not stopped by one


def test_any_key_of_the_policy_will_do(signed: Path, tmp_path: Path):
    other = write_key(tmp_path, "b.pem").with_suffix(".pub")
    mine = (tmp_path / "a.pub").read_bytes()
    for given in (mine, mine.decode(), str(tmp_path / "a.pub")):
        aotair.load(signed, trust=TrustPolicy(keys=[other, given])).close()


def test_all_programs_and_golden_tensors_of_an_artifact_for_several_meshes_are_signed(common_folder, tmp_path: Path):
    path = Path(shutil.copytree(built(common_folder, DEEP, [{"pp": 2}, {}, {"pp": 4}]), tmp_path / "a.aotair"))
    file = write_key(tmp_path, "k.pem")
    sign(path, "--key", file)
    trust = TrustPolicy(keys=[file.with_suffix(".pub")])
    with aotair.load(path, trust=trust) as model:
        assert all(result.within for result in replay_golden(model))
    checked = command("verify", path, "--key", file.with_suffix(".pub"), "--signature-only")
    assert checked.exit_code == 0, checked.output
    for name in ("golden.2.safetensors", "debug.2.msgpack"):
        before = (path / name).read_bytes()
        (path / name).write_bytes(before[:-1] + b"x")
        with pytest.raises(AlteredError, match="not the one that was signed"):
            aotair.load(path, trust=trust)
        (path / name).write_bytes(before)
    (path / "model.sig").unlink()
    list_of = codec.parse_any((path / "program.msgpack").read_bytes(), "x")
    spoilt = (*list_of.programs[:2], dataclasses.replace(list_of.programs[2], body=b"\xc1"))
    (path / "program.msgpack").write_bytes(codec.dump_several(dataclasses.replace(list_of, programs=spoilt)))
    refused = command("sign", path, "--key", file)
    assert refused.exit_code == 1 and "the program for pp=4" in refused.output and not (path / "model.sig").exists()


def test_a_key_with_a_password_signs(path: Path, tmp_path: Path):
    file = write_key(tmp_path, "k.pem", password=b"secret")
    (tmp_path / "password").write_text("secret\n")
    sign(path, "--key", file, "--password-file", tmp_path / "password")
    aotair.load(path, trust=TrustPolicy(keys=[file.with_suffix(".pub")])).close()
    assert "cannot be used" in command("sign", path, "--key", file).output


def test_an_unsigned_artifact_is_refused(path: Path, tmp_path: Path):
    write_key(tmp_path, "a.pem")
    with pytest.raises(UnsignedError, match="not signed"):
        aotair.load(path, trust=TrustPolicy(keys=[tmp_path / "a.pub"]))


def test_another_key_is_refused(signed: Path, tmp_path: Path):
    other = write_key(tmp_path, "b.pem").with_suffix(".pub")
    with pytest.raises(SignerError, match="another key"):
        aotair.load(signed, trust=TrustPolicy(keys=[other]))


def test_a_signature_without_a_hint_is_tried_with_each_key(signed: Path, tmp_path: Path):
    change_bundle(signed, lambda bundle: bundle["verificationMaterial"]["publicKey"].update(hint=None))
    other = write_key(tmp_path, "b.pem").with_suffix(".pub")
    aotair.load(signed, trust=TrustPolicy(keys=[other, tmp_path / "a.pub"])).close()
    aotair.load(signed, trust=TrustPolicy(keys=[tmp_path / "a.pub", other])).close()
    with pytest.raises(SignatureError):
        aotair.load(signed, trust=TrustPolicy(keys=[other]))


NAMES = (
    "program.msgpack",
    "weights.safetensors",
    "golden.safetensors",
    "report.html",
    "report/forward.html",
    "files/labels.txt",
)


@pytest.mark.parametrize("name", NAMES)
def test_one_changed_byte_of_any_file_is_refused(signed: Path, trust: TrustPolicy, name: str):
    data = bytearray((signed / name).read_bytes())
    data[-1] ^= 1
    (signed / name).write_bytes(data)
    with pytest.raises(AlteredError, match=name):
        aotair.load(signed, trust=trust)


@pytest.mark.parametrize("name", NAMES)
def test_a_removed_file_is_refused(signed: Path, trust: TrustPolicy, name: str):
    (signed / name).unlink()
    with pytest.raises(ArtifactError) as caught:
        aotair.load(signed, trust=trust)
    assert name in str(caught.value) and (name == "program.msgpack" or type(caught.value) is TruncatedError)


@pytest.mark.parametrize("name", ["more.txt", ".hidden", "files/more.txt", "a/b/c.txt", ".git/config"])
def test_an_added_file_is_refused(signed: Path, trust: TrustPolicy, name: str):
    (signed / name).parent.mkdir(parents=True, exist_ok=True)
    (signed / name).touch()
    with pytest.raises(AddedFileError, match=name):
        aotair.load(signed, trust=trust)


def test_a_link_beside_the_files_is_refused(signed: Path, trust: TrustPolicy):
    (signed / "more").symlink_to("/")
    with pytest.raises(AddedFileError):
        aotair.load(signed, trust=trust)


def test_folders_without_end_are_refused(signed: Path, trust: TrustPolicy):
    (signed / "/".join("x" * 30)).mkdir(parents=True)
    with pytest.raises(MalformedError, match="folders in folders"):
        aotair.load(signed, trust=trust)


def test_the_program_of_another_signed_artifact_is_refused(signed: Path, trust: TrustPolicy, tmp_path: Path):
    other = made(tmp_path / "other", 2.0)
    sign(other, "--key", tmp_path / "a.pem")
    shutil.copy(other / "model.sig", signed / "model.sig")
    with pytest.raises(AlteredError):
        aotair.load(signed, trust=trust)
    shutil.copy(other / "program.msgpack", signed / "program.msgpack")
    with pytest.raises(AlteredError):
        aotair.load(signed, trust=trust)


def test_nothing_is_parsed_before_the_signature_is_good(signed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(opening.codec, "parse_any", fail)
    other = write_key(tmp_path, "b.pem").with_suffix(".pub")
    with pytest.raises(SignerError):
        aotair.load(signed, trust=TrustPolicy(keys=[other]))
    (signed / "program.msgpack").write_bytes(b"\x91" * 1000)
    with pytest.raises(AlteredError):
        aotair.load(signed, trust=TrustPolicy(keys=[tmp_path / "a.pub"]))


def test_signed_only_leaves_out_what_a_load_does_not_read(signed: Path, trust: TrustPolicy):
    for name in ("report.html", "golden.safetensors"):
        data = (signed / name).read_bytes()
        (signed / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(AlteredError):
        aotair.load(signed, trust=trust)
    with aotair.load(signed, trust=trust, verify_weights="signed-only") as model, pytest.raises(AlteredError):
        opening.read_golden(model.artifact)
    weights = signed / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    with pytest.raises(AlteredError):
        aotair.load(signed, trust=trust, verify_weights="signed-only")


@pytest.mark.parametrize("verify", ["sampled", "length", False])
def test_a_signature_of_all_bytes_is_not_checked_by_some(signed: Path, trust: TrustPolicy, verify):
    with pytest.raises(ArgumentError, match="all bytes"):
        aotair.load(signed, trust=trust, verify_weights=verify)
    with pytest.raises(ArgumentError, match="signed-only"):
        aotair.load(signed, verify_weights="signed-only")


# ---- by a certificate ------------------------------------------------------------------------------------------------


class Chain(NamedTuple):
    root: Owner
    between: Owner
    leaf: Owner


def chained(**of_leaf: object) -> Chain:
    root = certified("root", ca=True)
    between = certified("between", root, ca=True)
    return Chain(root, between, certified("release", between, mail="release@example.com", **of_leaf))


def sign_by(path: Path, folder: Path, owner: Owner, *others: Owner) -> None:
    key = write_key(folder, "leaf.pem", owner.key)
    (folder / "leaf.crt").write_bytes(pem(owner))
    (folder / "chain.crt").write_bytes(pem(*others))
    chain = ("--chain", folder / "chain.crt") if others else ()
    sign(path, "--key", key, "--certificate", folder / "leaf.crt", *chain)


@pytest.mark.parametrize("names", [[], ["release@example.com"], ["release"], ["x", "release"]])
def test_a_certificate_of_a_trusted_authority_is_let_in(path: Path, tmp_path: Path, names: list[str]):
    chain = chained()
    sign_by(path, tmp_path, chain.leaf, chain.between)
    for trusted in (chain.root, chain.between, chain.leaf):
        aotair.load(path, trust=TrustPolicy(certificates=[pem(trusted)], names=names)).close()


def test_another_name_is_refused(path: Path, tmp_path: Path):
    chain = chained()
    sign_by(path, tmp_path, chain.leaf, chain.between)
    with pytest.raises(SignerError, match="another name") as caught:
        aotair.load(path, trust=TrustPolicy(certificates=[pem(chain.root)], names=["root", "RELEASE"]))
    assert "release@example.com" in caught.value.got


def test_another_authority_is_refused(path: Path, tmp_path: Path):
    chain = chained()
    sign_by(path, tmp_path, chain.leaf, chain.between)
    for other in (certified("root", ca=True), chained().between):
        with pytest.raises(SignerError, match="leads to none"):
            aotair.load(path, trust=TrustPolicy(certificates=[pem(other)]))
    with pytest.raises(SignerError, match="by a certificate"):
        aotair.load(path, trust=TrustPolicy(keys=[write_key(tmp_path, "b.pem").with_suffix(".pub")]))


def test_a_chain_with_a_link_missing_is_refused(path: Path, tmp_path: Path):
    chain = chained()
    sign_by(path, tmp_path, chain.leaf)
    with pytest.raises(SignerError):
        aotair.load(path, trust=TrustPolicy(certificates=[pem(chain.root)]))


def test_who_is_no_authority_vouches_for_nobody(path: Path, tmp_path: Path):
    chain = chained()
    forged = certified("release", chain.leaf)
    sign_by(path, tmp_path, forged, chain.leaf, chain.between)
    with pytest.raises(SignerError):
        aotair.load(path, trust=TrustPolicy(certificates=[pem(chain.root)]))


@pytest.mark.parametrize(
    "span, text", [({"begin": -9 * DAY, "end": -DAY}, "expired"), ({"begin": DAY}, "not valid yet")]
)
def test_a_certificate_out_of_its_time_is_refused(path: Path, tmp_path: Path, span, text: str):
    chain = chained(**span)
    sign_by(path, tmp_path, chain.leaf, chain.between)
    for trusted in (chain.root, chain.leaf):
        with pytest.raises(ExpiredError, match=text):
            aotair.load(path, trust=TrustPolicy(certificates=[pem(trusted)]))


def test_an_authority_out_of_its_time_is_refused(path: Path, tmp_path: Path):
    root = certified("root", ca=True, begin=-9 * DAY, end=-DAY)
    leaf = certified("release", root, begin=-2 * DAY)
    sign_by(path, tmp_path, leaf)
    with pytest.raises(ExpiredError, match="vouches"):
        aotair.load(path, trust=TrustPolicy(certificates=[pem(root)]))


def test_a_certificate_for_other_uses_is_refused(path: Path, tmp_path: Path):
    chain = chained(signs=False)
    sign_by(path, tmp_path, chain.leaf, chain.between)
    with pytest.raises(SignerError, match="none for signing"):
        aotair.load(path, trust=TrustPolicy(certificates=[pem(chain.root)]))


def test_a_signature_by_another_key_than_the_certificates_is_refused(path: Path, tmp_path: Path):
    one, other = chained(), chained()
    sign_by(path, tmp_path, one.leaf, one.between)
    mine = json.loads((path / "model.sig").read_text())
    sign_by(path, tmp_path, other.leaf, other.between)
    change_bundle(path, lambda bundle: bundle.update(verificationMaterial=mine["verificationMaterial"]))
    with pytest.raises(SignatureError, match="does not fit"):
        aotair.load(path, trust=TrustPolicy(certificates=[pem(one.root)]))


# ---- both ways -------------------------------------------------------------------------------------------------------


def test_what_model_signing_has_signed_is_let_in(path: Path, tmp_path: Path):
    key = write_key(tmp_path, "k.pem")
    how = hashing.Config().set_ignored_paths(paths=[path / "model.sig"])
    signing.Config().set_hashing_config(how).use_elliptic_key_signer(private_key=key).sign(path, path / "model.sig")
    aotair.load(path, trust=TrustPolicy(keys=[key.with_suffix(".pub")])).close()


def test_model_signing_verifies_what_is_signed_here(signed: Path, tmp_path: Path):
    ask = verifying.Config().use_elliptic_key_verifier(public_key=tmp_path / "a.pub")
    ask.verify(signed, signed / "model.sig")
    (signed / "report.html").write_text("another")
    with pytest.raises(ValueError, match=r"report\.html"):
        ask.verify(signed, signed / "model.sig")


def test_model_signing_verifies_a_certificate_that_signed_here(path: Path, tmp_path: Path):
    chain = chained()
    sign_by(path, tmp_path, chain.leaf, chain.between)
    (tmp_path / "root.crt").write_bytes(pem(chain.root))
    ask = verifying.Config().use_certificate_verifier(certificate_chain=[tmp_path / "root.crt"])
    ask.verify(path, path / "model.sig")


def test_files_signed_in_parts_are_refused_by_name(path: Path, tmp_path: Path):
    key = write_key(tmp_path, "k.pem")
    how = hashing.Config().use_shard_serialization(shard_size=1000)
    signing.Config().set_hashing_config(how).use_elliptic_key_signer(private_key=key).sign(path, path / "model.sig")
    with pytest.raises(SignatureError, match="another way"):
        aotair.load(path, trust=TrustPolicy(keys=[key.with_suffix(".pub")]))


# ---- hostile bundles -------------------------------------------------------------------------------------------------


def change_bundle(path: Path, change: Callable[[dict], object]) -> None:
    bundle = json.loads((path / "model.sig").read_text())
    change(bundle)
    (path / "model.sig").write_text(json.dumps(bundle))


def at(*keys: object, value: object) -> Callable[[dict], None]:
    def change(bundle: dict) -> None:
        for key in keys[:-1]:
            bundle = bundle[key]
        bundle[keys[-1]] = value

    return change


def certificates(text: str, count: int) -> Callable[[dict], None]:
    return at(MATERIAL, value={"x509CertificateChain": {"certificates": [{"rawBytes": text}] * count}})


ZEROS = base64.b64encode(bytes.fromhex("3006020100020100")).decode()
MATERIAL, ENVELOPE = "verificationMaterial", "dsseEnvelope"
BUNDLES: dict[str, Callable[[dict], object]] = {
    "another media type": at("mediaType", value="application/json"),
    "no envelope": lambda bundle: bundle.pop(ENVELOPE),
    "a message signature beside": at("messageSignature", value={}),
    "an envelope that is a list": at(ENVELOPE, value=[]),
    "another payload type": at(ENVELOPE, "payloadType", value="text/plain"),
    "no signatures": at(ENVELOPE, "signatures", value=[]),
    "two signatures": lambda bundle: bundle[ENVELOPE]["signatures"].append(bundle[ENVELOPE]["signatures"][0]),
    "a signature that is a number": at(ENVELOPE, "signatures", 0, "sig", value=7),
    "a signature of a megabyte": at(ENVELOPE, "signatures", 0, "sig", value="AAAA" * (1 << 18)),
    "a signature that is no base64": at(ENVELOPE, "signatures", 0, "sig", value="\x1b[2J"),
    "a field beside a signature": at(ENVELOPE, "signatures", 0, "cert", value="x"),
    "an empty signature": at(ENVELOPE, "signatures", 0, "sig", value=""),
    "zeros as a signature": at(ENVELOPE, "signatures", 0, "sig", value=ZEROS),
    "another payload": at(ENVELOPE, "payload", value=base64.b64encode(b"{}").decode()),
    "a payload that is no base64": at(ENVELOPE, "payload", value="{}"),
    "an entry of a log": at(MATERIAL, "tlogEntries", value=[{}]),
    "one certificate": at(MATERIAL, "certificate", value={"rawBytes": "AAAA"}),
    "two signers": at(MATERIAL, "x509CertificateChain", value={"certificates": [{"rawBytes": "AAAA"}]}),
    "no signer": at(MATERIAL, value={}),
    "a hint that is a list": at(MATERIAL, "publicKey", "hint", value=["a"]),
    "certificates that are none": certificates("AAAA", 1),
    "no certificates": at(MATERIAL, value={"x509CertificateChain": {"certificates": []}}),
    "a thousand certificates": certificates("AAAA", 1000),
    "a certificate of a megabyte": certificates("AAAA" * (1 << 18), 1),
}  # fmt: skip


@pytest.mark.parametrize("what", BUNDLES)
def test_a_hostile_bundle_is_refused(signed: Path, trust: TrustPolicy, what: str):
    change_bundle(signed, BUNDLES[what])
    with pytest.raises(SignatureError) as caught:
        aotair.load(signed, trust=trust)
    assert len(str(caught.value)) < 1000


TEXTS: dict[str, bytes] = {
    "nothing": b"",
    "no text": b"\xff\xfe",
    "a list": b"[]",
    "nesting": b"[" * 1_000_000,
    "nesting of objects": b'{"a":' * 500_000,
    "digits": b'{"mediaType": ' + b"7" * 100_000 + b"}",
    "a name twice": b'{"mediaType": 1, "mediaType": 2}',
    "NaN": b"NaN",
}


@pytest.mark.parametrize("what", TEXTS)
def test_a_hostile_text_is_refused_soon(signed: Path, trust: TrustPolicy, what: str):
    (signed / "model.sig").write_bytes(TEXTS[what])
    began = time.perf_counter()
    with pytest.raises(SignatureError):
        aotair.load(signed, trust=trust)
    assert time.perf_counter() - began < 2


def test_a_signature_of_a_terabyte_is_refused_unread(signed: Path, trust: TrustPolicy):
    with (signed / "model.sig").open("r+b") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(MalformedError, match="longer than any"):
        aotair.load(signed, trust=trust)


def resign(path: Path, key: ec.EllipticCurvePrivateKey, change: Callable[[dict], object]) -> None:
    """Change the statement and sign it rightly again, as a signer with another tool would."""

    def again(bundle: dict) -> None:
        statement = json.loads(base64.b64decode(bundle[ENVELOPE]["payload"]))
        payload = json.dumps(change(statement) or statement).encode()
        kind = bundle[ENVELOPE]["payloadType"].encode()
        data = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
        bundle[ENVELOPE]["payload"] = base64.b64encode(payload).decode()
        sig = key.sign(data, ec.ECDSA(hashes.SHA256()))
        bundle[ENVELOPE]["signatures"][0]["sig"] = base64.b64encode(sig).decode()

    change_bundle(path, again)


def of_files(change: Callable[[list], object]) -> Callable[[dict], None]:
    """Other files, with the digest of them all put right."""

    def both(statement: dict) -> None:
        files = statement["predicate"]["resources"]
        change(files)
        digests = b"".join(bytes.fromhex(item["digest"]) for item in files)
        statement["subject"][0]["digest"]["sha256"] = hashlib.sha256(digests).hexdigest()

    return both


STATEMENTS: dict[str, Callable[[dict], object]] = {
    "another type": lambda s: s.update(_type="https://in-toto.io/Statement/v0"),
    "another predicate": lambda s: s.update(predicateType="https://slsa.dev/provenance/v1"),
    "the predicate of old": lambda s: s.update(predicateType="https://model_signing/Digests/v0.1"),
    "no predicate": lambda s: s.update(predicate=None),
    "another digest": lambda s: s["predicate"]["serialization"].update(hash_type="blake3"),
    "no files": lambda s: s["predicate"].update(resources={}),
    "a million files": lambda s: s["predicate"].update(resources=[{}] * 20_000),
    "another sum": lambda s: s["subject"][0]["digest"].update(sha256="0" * 64),
    "two subjects": lambda s: s["subject"].append(s["subject"][0]),
    "no subject": lambda s: s.update(subject=[]),
    "a file of another algorithm": of_files(lambda files: files[0].update(algorithm="md5")),
    "a file twice": of_files(lambda files: files.append(copy.deepcopy(files[0]))),
    "a digest in capitals": lambda s: s["predicate"]["resources"][0].update(digest="A" * 64),
    "no program": of_files(lambda files: files.pop([f["name"] for f in files].index("program.msgpack"))),
}  # fmt: skip


@pytest.mark.parametrize("what", STATEMENTS)
def test_a_statement_of_another_kind_is_refused_though_it_is_signed(path: Path, tmp_path: Path, what: str):
    key = ec.generate_private_key(ec.SECP256R1())
    sign(path, "--key", write_key(tmp_path, "k.pem", key))
    trust = TrustPolicy(keys=[pem_of(key)])
    resign(path, key, lambda statement: None)
    aotair.load(path, trust=trust).close()
    resign(path, key, STATEMENTS[what])
    with pytest.raises(SignatureError):
        aotair.load(path, trust=trust)


def test_weights_that_were_signed_and_that_the_program_does_not_list_are_refused(path: Path, tmp_path: Path):
    """A signer whose tool took the digest of other weights than the program's."""
    key = ec.generate_private_key(ec.SECP256R1())
    sign(path, "--key", write_key(tmp_path, "k.pem", key))

    def change(files: list) -> None:
        next(item for item in files if item["name"] == "weights.safetensors")["digest"] = "0" * 64

    resign(path, key, of_files(change))
    with pytest.raises(AlteredError, match="lists another file"):
        aotair.load(path, trust=TrustPolicy(keys=[pem_of(key)]))


# ---- policies --------------------------------------------------------------------------------------------------------


def test_a_policy_is_read_from_a_file(signed: Path, tmp_path: Path):
    (tmp_path / "trust.json").write_text(json.dumps({"keys": ["a.pub"]}))
    aotair.load(signed, trust=TrustPolicy.from_file(tmp_path / "trust.json")).close()
    text = (tmp_path / "a.pub").read_text()
    (tmp_path / "trust.json").write_text(json.dumps({"keys": [text], "names": []}))
    aotair.load(signed, trust=TrustPolicy.from_file(tmp_path / "trust.json")).close()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"keys": "a.pub"}', '{"keys": [7]}', '{"keys": ["none.pub"]}', '{"keys": [], "more": 1}',
     '{"keys": ["a.pub"], "names": ["x"]}', '{"keys": ["a.pub"], "unsigned_weights": 1}', "[" * 100_000],
)  # fmt: skip
def test_a_policy_that_cannot_be_read_is_refused(tmp_path: Path, text: str):
    write_key(tmp_path, "a.pem")
    (tmp_path / "trust.json").write_text(text)
    with pytest.raises(PolicyError):
        TrustPolicy.from_file(tmp_path / "trust.json")


def test_a_policy_with_what_is_no_key_is_refused(signed: Path, tmp_path: Path):
    wrong = rsa.generate_private_key(65537, 2048)
    for key in (b"nothing", pem_of(wrong), pem_of(ec.generate_private_key(ec.SECP256K1()))):
        with pytest.raises(PolicyError):
            aotair.load(signed, trust=TrustPolicy(keys=[key]))
    with pytest.raises(PolicyError, match="trusts nobody"):
        TrustPolicy()
    with pytest.raises(PolicyError, match="lists"):
        TrustPolicy(keys="a.pub")
    with pytest.raises(ArgumentError, match="trust="):
        aotair.load(signed, trust=tmp_path / "a.pub")


def test_the_policy_of_the_node_holds_for_every_load(signed: Path, trust, tmp_path: Path, monkeypatch):
    file = tmp_path / "node.json"
    monkeypatch.setattr(policies, "SYSTEM_POLICY", file)
    aotair.load(signed).close()
    other = write_key(tmp_path, "b.pem").with_suffix(".pub")
    file.write_text(json.dumps({"keys": [str(other)]}))
    for options in ({}, {"trust": trust}):
        with pytest.raises(SignerError):
            aotair.load(signed, **options)
    file.write_text(json.dumps({"keys": ["a.pub"]}))
    aotair.load(signed).close()
    with pytest.raises(SignerError):  # the caller's holds beside it
        aotair.load(signed, trust=TrustPolicy(keys=[other]))
    with pytest.raises(ArgumentError):
        aotair.load(signed, verify_weights="length")
    file.write_text("{")
    with pytest.raises(PolicyError):
        aotair.load(signed)
    file.unlink()
    file.symlink_to("nowhere")
    with pytest.raises(PolicyError):
        aotair.load(signed)


def test_other_weights_have_to_be_signed_too(signed: Path, tmp_path: Path):
    policy = {"keys": [tmp_path / "a.pub"]}
    other = made(tmp_path / "other", 2.0)
    safetensors.torch.save_file({"weight": torch.ones(2, 4), "bias": torch.ones(2)}, tmp_path / "w.safetensors")
    with aotair.load(signed, trust=TrustPolicy(**policy), enable_output_clone=True) as model:
        for load in (model.load_weights, model.load_adapter):
            with pytest.raises(UnsignedError, match="carry no signature"):
                load(tmp_path / "w.safetensors")
        with pytest.raises(UnsignedError, match="not signed"):
            model.load_weights(other)
        sign(other, "--key", tmp_path / "a.pem")
        before = model(torch.ones(1, 4))
        model.load_weights(other)
        assert not torch.equal(model(torch.ones(1, 4)), before)
    with aotair.load(signed, trust=TrustPolicy(**policy, unsigned_weights=True)) as model:
        model.load_weights(tmp_path / "w.safetensors")


def test_without_cryptography_the_error_names_the_extra(signed: Path, tmp_path: Path):
    script = f"""
import sys
sys.modules["cryptography"] = None
import aotair_runtime
aotair_runtime.load({str(signed)!r}).close()
try:
    aotair_runtime.load({str(signed)!r}, trust=aotair_runtime.TrustPolicy(keys=[{str(tmp_path / "a.pub")!r}]))
except aotair_runtime.AotairError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "pip install 'aotair-runtime[sign]'" in done.stdout


# ---- the commands ----------------------------------------------------------------------------------------------------


def test_signing_again_replaces_the_signature_and_leaves_nothing_else(signed: Path, tmp_path: Path):
    before = sorted(item.name for item in signed.iterdir())
    sign(signed, "--key", write_key(tmp_path, "b.pem"))
    assert sorted(item.name for item in signed.iterdir()) == before
    assert not [item for item in tmp_path.iterdir() if item.name.startswith(".")]
    aotair.load(signed, trust=TrustPolicy(keys=[tmp_path / "b.pub"])).close()


def test_what_is_not_whole_is_not_signed(path: Path, tmp_path: Path):
    key = write_key(tmp_path, "k.pem")
    (path / "files" / "labels.txt").write_text("another")
    done = command("sign", path, "--key", key)
    assert (done.exit_code == 1 and "digest" in done.output + done.stderr) or "length" in done.output
    assert not (path / "model.sig").exists()


def test_keys_that_cannot_sign_are_refused(path: Path, tmp_path: Path):
    wrong = tmp_path / "rsa.pem"
    key = rsa.generate_private_key(65537, 2048)
    wrong.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    public = write_key(tmp_path, "k.pem").with_suffix(".pub")
    for file in (wrong, public, tmp_path / "none.pem"):
        done = command("sign", path, "--key", file)
        assert done.exit_code == 1 and done.output.startswith("error: "), done.output
    assert command("sign", path).exit_code == 2


def test_verify_looks_at_the_signature_first(signed: Path, tmp_path: Path):
    other = write_key(tmp_path, "b.pem").with_suffix(".pub")
    assert command("verify", signed, "--key", tmp_path / "a.pub").exit_code == 0
    done = command("verify", signed, "--key", other)
    assert done.exit_code == 1 and "another key" in done.output
    assert "signature is good" in command("verify", signed, "--key", tmp_path / "a.pub", "--signature-only").output
    assert command("verify", signed, "--signature-only").exit_code == 2
    (tmp_path / "trust.json").write_text(json.dumps({"keys": ["a.pub"]}))
    assert command("verify", signed, "--trust", tmp_path / "trust.json", "--signature-only").exit_code == 0
    assert command("verify", signed, "--trust", tmp_path / "trust.json", "--key", other).exit_code == 2


def test_doctor_says_whether_the_signature_would_do(signed: Path, trust: TrustPolicy, tmp_path: Path):
    other = write_key(tmp_path, "b.pem").with_suffix(".pub")
    assert aotair.check(signed, trust=trust).answer == "runs here"
    (row,) = aotair.check(signed, trust=TrustPolicy(keys=[other])).reasons
    assert (row.name, row.standing) == ("signature", "missing") and "another key" in row.has
    assert command("doctor", signed, "--key", tmp_path / "a.pub").exit_code == 0
    assert command("doctor", signed, "--key", other).exit_code == 1
    (signed / "model.sig").unlink()
    assert aotair.check(signed, trust=trust).answer == "cannot"
