"""Builds and signing ended by `kill -9` at random moments: there is the old artifact or signature, or the new one, and
the next build or signing cleans up.

A process lays down and packs one of two prepared artifacts after the other at one place, until it is killed. Then the
place is read as a node would read it, every byte is compared, and another process builds there once more. A part of
the kills meets a place where nothing was yet, and half of them a file system that cannot exchange folders in one step.
Then the same with a process that signs an artifact with one of two keys after the other: one of both has signed it.
"""

import hashlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from aotair.disk import place
from aotair.pack import lay_down, pack, written_aside
from aotair.program import Built
from aotair.prove.prove import Proved
from aotair.tools.sign import Signer, sign_artifact
from aotair_runtime.artifact.open import open_artifact, opened, read_golden, with_weights
from aotair_runtime.errors import AotairError, NotAnArtifactError, TrustError
from aotair_runtime.format.schema import REPORT_FILE
from aotair_runtime.trust.gate import gate_for
from aotair_runtime.trust.policy import TrustPolicy

from .common import BUILD, Row, options, report
from .exchanged import VALUES

_BUILDS, _SIGNINGS = 2.5, 3  # that a child has the time for, at the most
_WAIT = 10.0  # seconds for something to be in the midst of writing


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--folder", type=Path, default=BUILD / "exchanged")
    given = parser.parse_args()
    # In another process: a child of one that has computed with several threads may wait for them for ever.
    command = "import pathlib, sys, benchmarks.exchanged as e; e.prepare(pathlib.Path(sys.argv[1]), len(sys.argv) > 2)"
    subprocess.run([sys.executable, "-c", command, str(given.folder), *["--rebuild"] * given.rebuild], check=True)
    count, signing = kills(given.folder, given.kills), signings(given.folder, given.kills)
    of = f"of {given.kills} kills"
    rows = [
        Row(f"{of}, artifacts that are not the old one or the new one", 0, count["broken"]),
        Row(f"{of}, folders left after the next build", 0, count["left"]),
        Row(f"{of}, in the midst of writing", 0.2 * given.kills, count["writing"], at_least=True),
        Row(f"{of} while it is signed, signatures that are not the old one or the new one", 0, signing["broken"]),
        Row(f"{of} while it is signed, files left after the next signing", 0, signing["left"]),
        Row(f"{of} while it is signed, in the midst of it", 0.2 * given.kills, signing["writing"], at_least=True),
    ]
    report(rows, given.json, **count, **{f"signing_{name}": number for name, number in signing.items()})


def kills(folder: Path, number: int) -> Counter:
    """What became of the place, after so many builds that were killed."""
    made = [_Made(folder / name) for name in VALUES]
    place_of, count, chance = folder / "killed", Counter(), random.Random(0)
    shutil.rmtree(place_of, ignore_errors=True)
    place_of.mkdir()
    out = place_of / "served.aotair"
    began = time.perf_counter()
    known = {one.write(out) for one in made * 3}
    most = _BUILDS * (time.perf_counter() - began) / (3 * len(made))
    for turn in range(number):
        fresh = turn % 4 == 3
        if fresh:
            shutil.rmtree(out)
        child = _building(made, out, two_steps=turn % 2 == 0)
        _kill(child, chance.uniform(0, most), waits_for=place_of if turn % 4 < 2 else None)
        count["writing"] += len(os.listdir(place_of)) > 1
        count["broken"] += _digest(out) not in ({*known, ""} if fresh else known)
        made[turn % 2].write(out)
        count["left"] += len(os.listdir(place_of)) - 1
        count["broken"] += _digest(out) not in known
    return count


def signings(folder: Path, number: int) -> Counter:
    """What became of the signature of an artifact, after so many signings that were killed."""
    place_of, count, chance = folder / "signed", Counter(), random.Random(0)
    shutil.rmtree(place_of, ignore_errors=True)
    shutil.copytree(folder / "first", out := place_of / "served.aotair")
    keys = [_key(folder / f"key{turn}.pem") for turn in range(2)]
    began = time.perf_counter()
    for _ in range(_SIGNINGS):
        sign_artifact(out, keys[0])
    most = time.perf_counter() - began
    for turn in range(number):
        _kill(_signing(out, keys), chance.uniform(0, most), waits_for=place_of if turn % 2 == 0 else None)
        count["writing"] += len(os.listdir(place_of)) > 1
        count["broken"] += not any(_is_signed(out, key) for key in keys)
        sign_artifact(out, keys[turn % 2])
        count["left"] += len(os.listdir(place_of)) - 1
        count["broken"] += not _is_signed(out, keys[turn % 2])
    return count


def _key(file: Path) -> Signer:
    """A private key in `file`, and its public one beside it."""
    key = ec.generate_private_key(ec.SECP256R1())
    form = serialization.PrivateFormat.PKCS8
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    public = serialization.PublicFormat.SubjectPublicKeyInfo
    file.with_suffix(".pub").write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, public))
    return Signer(file)


def _signing(out: Path, keys: list[Signer]) -> int:
    """A child that signs again and again, until it is killed."""
    child = os.fork()
    if child == 0:
        for turn in itertools.count():
            sign_artifact(out, keys[turn % 2])
    return child


def _kill(child: int, seconds: float, waits_for: Path | None) -> None:
    """The child is killed after so many seconds, or as soon after them as there is something aside in the folder."""
    time.sleep(seconds)
    ends = time.monotonic() + _WAIT
    while waits_for is not None and time.monotonic() < ends:
        os.kill(child, signal.SIGSTOP)
        os.waitpid(child, os.WUNTRACED)
        if len(os.listdir(waits_for)) > 1:
            break
        os.kill(child, signal.SIGCONT)
        time.sleep(0.0005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _is_signed(out: Path, key: Signer) -> bool:
    """Whether a node that trusts the key lets the artifact in."""
    gate = gate_for(TrustPolicy(keys=[key.key.with_suffix(".pub")]), "full")
    try:
        with_weights(*opened(out, gate), gate=gate)
    except TrustError:
        return False
    return True


class _Made:
    """An artifact as the stages before the last have made it."""

    def __init__(self, path: Path):
        artifact = open_artifact(path)
        names = [constant.name for constant in artifact.program.constants]
        self._program = artifact.program
        self._weights = dict(zip(names, artifact.constants))
        self._golden = read_golden(artifact)

    def write(self, out: Path) -> str:
        with written_aside(out) as folder:
            program = lay_down(Built(self._program, self._weights, {}), folder).program
            pack(Proved(program, self._golden), {REPORT_FILE: "<html></html>" * 1000}, folder)
        return _digest(out)


def _building(made: list[_Made], out: Path, two_steps: bool) -> int:
    """A child that builds again and again, until it is killed."""
    child = os.fork()
    if child == 0:
        if two_steps:
            place.exchange = lambda *_: False
        for turn in itertools.count():
            made[turn % 2].write(out)
    return child


def _digest(out: Path) -> str:
    """Of all files of the artifact that a node finds at the place; empty where it finds none."""
    try:
        folder, _ = opened(out)
        open_artifact(folder.path)
    except NotAnArtifactError:
        return ""
    except AotairError as error:
        return str(error)
    state = hashlib.sha256()
    for file in sorted(filter(Path.is_file, folder.path.rglob("*"))):
        state.update(f"{file.relative_to(folder.path)}\0".encode() + file.read_bytes())
    return state.hexdigest()


if __name__ == "__main__":
    main()
