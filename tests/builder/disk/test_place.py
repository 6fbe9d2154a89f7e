"""What is written is whole or not there, whatever the system refuses, who ends the process, what a disk forgets."""

import contextlib
import errno
import itertools
import os
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from cases import ROOT
from marks import long

import aotair
from aotair.disk import owner, place
from aotair.disk.exchange import exchange
from aotair.disk.owner import temporary
from aotair.disk.place import new_file, new_folder, refusals
from aotair.errors import WriteError


def artifact_at(out: Path, text: str) -> None:
    """Files as an artifact has them, one of them deeper."""
    with new_folder(out) as folder:
        (folder / "program.msgpack").write_text(text)
        (folder / "files").mkdir()
        (folder / "files" / "labels.txt").write_text(text)


def content(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


def whole(text: str) -> dict[str, str]:
    return {"program.msgpack": text, "files/labels.txt": text}


@pytest.fixture(params=["one step", "two steps"])
def steps(request, monkeypatch) -> str:
    if request.param == "two steps":
        monkeypatch.setattr(place, "exchange", lambda *_: False)
    return request.param


# ---- into its place --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("steps")
def test_what_is_replaced_is_gone_and_nothing_else_is_left(tmp_path: Path):
    out = tmp_path / "a.aotair"
    for text in ("first", "second", "third"):
        artifact_at(out, text)
        assert content(out) == whole(text) and list(tmp_path.iterdir()) == [out]


def test_two_folders_change_places_in_one_step(tmp_path: Path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text").write_text(name)
    assert exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "text").read_text() == "b" and (tmp_path / "b" / "text").read_text() == "a"
    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "a", tmp_path / "c")


def test_a_system_without_that_step(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("aotair.disk.exchange._renameat2", lambda: None)
    assert not exchange(tmp_path / "a", tmp_path / "b")
    artifact_at(tmp_path / "a", "first")
    artifact_at(tmp_path / "a", "second")
    assert content(tmp_path / "a") == whole("second") and len(list(tmp_path.iterdir())) == 1


@pytest.mark.usefixtures("steps")
def test_a_link_stays_and_what_it_stands_for_is_replaced(tmp_path: Path):
    (tmp_path / "store").mkdir()
    artifact_at(tmp_path / "store" / "v1", "first")
    (tmp_path / "current").symlink_to("store/v1")
    artifact_at(tmp_path / "current", "second")
    assert os.readlink(tmp_path / "current") == "store/v1" and content(tmp_path / "store" / "v1") == whole("second")
    assert len(list(tmp_path.iterdir())) == 2 and len(list((tmp_path / "store").iterdir())) == 1


@pytest.mark.usefixtures("steps")
def test_builds_that_take_the_same_place_at_once(tmp_path: Path):
    out = tmp_path / "a"
    with new_folder(out) as one, new_folder(out) as two:
        for number, folder in enumerate((one, two)):
            (folder / "program.msgpack").write_text(str(number))
    assert content(out) == {"program.msgpack": "0"} and list(tmp_path.iterdir()) == [out]


def test_where_the_second_of_two_steps_fails_the_old_one_is_put_back(tmp_path: Path, monkeypatch):
    out, rename, calls = tmp_path / "a", os.rename, []
    artifact_at(out, "first")

    def fails(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == 2:
            raise OSError(errno.EIO, "planted")
        rename(source, target)

    monkeypatch.setattr(place, "exchange", lambda *_: False)
    monkeypatch.setattr(os, "rename", fails)
    with pytest.raises(WriteError):
        artifact_at(out, "second")
    assert content(out) == whole("first") and list(tmp_path.iterdir()) == [out]


def test_a_file_is_replaced_whole_and_keeps_its_rights(tmp_path: Path):
    file = tmp_path / "recipe.yaml"
    file.write_text("first")
    file.chmod(0o640)
    with pytest.raises(ValueError), new_file(file) as aside:
        aside.write_text("sec")
        raise ValueError
    assert file.read_text() == "first" and list(tmp_path.iterdir()) == [file]
    with new_file(file) as aside:
        aside.write_text("second")
        assert file.read_text() == "first"
    assert file.read_text() == "second" and file.stat().st_mode & 0o777 == 0o640 and list(tmp_path.iterdir()) == [file]


# ---- what ended processes have left ----------------------------------------------------------------------------------

ENDED = """
import os, signal, sys
from pathlib import Path
from aotair.disk.place import new_folder
with new_folder(Path(sys.argv[1])) as folder:
    (folder / "program.msgpack").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def ended(out: Path) -> Path:
    """What a build has left that was killed."""
    before = set(out.parent.iterdir())
    subprocess.run([sys.executable, "-c", ENDED, str(out)], cwd=ROOT)
    (left,) = set(out.parent.iterdir()) - before
    return left


def test_the_next_build_to_a_place_removes_what_a_killed_one_left(tmp_path: Path):
    out = tmp_path / "a"
    left, other = ended(out), ended(tmp_path / "b")
    assert (left / "program.msgpack").read_text() == "half" and not out.exists()
    artifact_at(out, "whole")
    assert sorted(tmp_path.iterdir()) == sorted([out, other]), "what is beside another place is the next build's there"


def test_what_a_living_build_has_is_left_alone(tmp_path: Path):
    with new_folder(tmp_path / "a") as mine:
        (mine / "program.msgpack").write_text("mine")
        artifact_at(tmp_path / "a", "other")
        assert (mine / "program.msgpack").read_text() == "mine"
    assert content(tmp_path / "a") == {"program.msgpack": "mine"}


def test_of_another_host_the_lock_tells_and_time(tmp_path: Path, monkeypatch):
    """So with containers, which see the folders of others and not their processes."""
    out = tmp_path / "a"
    left = ended(out)
    theirs = left.with_name(left.name.replace(owner._short(os.uname().nodename), "0" * 8))
    left.rename(theirs)
    artifact_at(out, "first")
    assert theirs.exists(), "it may be at work"
    os.utime(theirs, (time.time() - 2 * 24 * 3600,) * 2)
    held = owner.locked(theirs)
    artifact_at(out, "second")
    assert theirs.exists(), "it is at work"
    owner.unlock(held)
    artifact_at(out, "third")
    assert not theirs.exists()


def test_without_locks_nobody_removes_what_another_host_has(tmp_path: Path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    left = ended(tmp_path / "a")
    theirs = left.with_name(left.name.replace(owner._short(os.uname().nodename), "0" * 8))
    shutil.copytree(left, theirs)
    os.utime(theirs, (0, 0))
    artifact_at(tmp_path / "a", "first")
    assert theirs.exists() and not left.exists()


def test_names_that_only_look_like_it_are_somebody_elses(tmp_path: Path):
    names = (".a.keep", ".a.1-2-3.old", f".b{temporary(tmp_path / 'a').name[2:]}")
    for name in names:
        (tmp_path / name).mkdir()
    artifact_at(tmp_path / "a", "x")
    assert {*names, "a"} == {entry.name for entry in tmp_path.iterdir()}


def test_what_was_set_aside_is_read_and_put_back(tmp_path: Path):
    """A build was killed between the two steps, where there is no step for both."""
    out = aotair.build(model=torch.nn.Linear(4, 2), out=tmp_path / "a", inputs={"input": torch.ones(1, 4)})
    mine = temporary(out, ".old")
    out.rename(mine)
    aotair.load(out).close()
    aotair.load(out).load_weights(out)
    dead = mine.with_name(mine.name.replace(f".{os.getpid()}-", ".999999999-"))
    mine.rename(dead)
    with pytest.raises(ValueError), new_folder(out):
        assert out.exists() and not dead.exists()
        raise ValueError
    assert list(tmp_path.iterdir()) == [out]
    aotair.load(out).close()


@pytest.mark.parametrize("kills", [2, long(6), long(60)])
def test_builds_and_signings_killed_at_random_moments_leave_the_old_one_or_the_new_one(tmp_path: Path, kills: int):
    out = run("benchmarks.killed", "--kills", str(kills), "--folder", str(tmp_path))
    lines = [line for line in out.splitlines() if f"of {kills} kills" in line]
    assert len(lines) == 6 and all("MET" in line for line in lines), out


@pytest.mark.parametrize("loads", [24, long(200)])  # in four ways
def test_loads_while_the_artifact_is_exchanged_have_one_or_the_other(tmp_path: Path, loads: int):
    out = run("benchmarks.exchanged", "--loads", str(loads), "--folder", str(tmp_path))
    lines = [line for line in out.splitlines() if f"of {loads // 4} loads" in line]
    assert len(lines) == 11 and all("MET" in line for line in lines), out


def run(module: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- what the system refuses -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE, errno.EACCES, errno.EIO, errno.EROFS, errno.EDQUOT])
@pytest.mark.parametrize("call", ["mkdir", "fsync", "rename", "chmod", "open"])
@pytest.mark.parametrize("there", [False, True])
def test_whatever_call_fails_there_is_one_error_and_nothing_is_left(
    tmp_path: Path, monkeypatch, call: str, number: int, there: bool
):
    out = tmp_path / "deep" / "a"
    if there:
        artifact_at(out, "first")
        monkeypatch.setattr(place, "exchange", lambda *_: False)
    real = getattr(os, call)

    def fails(path, *args, **kwargs):
        if call == "open" and isinstance(path, str) and "dir_fd" in kwargs:
            return real(path, *args, **kwargs)  # of what removes
        raise OSError(number, os.strerror(number), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fails)
        with pytest.raises(WriteError, match=os.strerror(number)) as caught:
            artifact_at(out, "second")
    assert caught.value.where == str(out)
    assert content(out) == whole("first") if there else list(tmp_path.iterdir()) == []
    assert not there or list(out.parent.iterdir()) == [out]


def test_a_process_that_may_open_no_more_files_gets_one_error_and_leaves_nothing(tmp_path: Path):
    out, wrong = tmp_path / "a", 0
    artifact_at(out, "first")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for more in range(8):
        held: list[int] = []
        try:
            with new_folder(out) as aside:
                (aside / "files").mkdir()
                for name in whole(""):
                    (aside / name).write_text("second")
                resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 8, hard))
                with contextlib.suppress(OSError):
                    while len(held) < 1000:
                        held.append(os.open("/dev/null", os.O_RDONLY))
                for _ in range(more):
                    os.close(held.pop())
        except WriteError as error:
            wrong += 1
            assert "Too many open files" in str(error) and "ulimit -n" in str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for descriptor in held:
                os.close(descriptor)
        assert list(tmp_path.iterdir()) == [out] and content(out) in (whole("first"), whole("second"))
    assert 0 < wrong < 8


def test_a_folder_above_that_is_a_file(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="Not a directory"):
        artifact_at(tmp_path / "file" / "a", "x")
    with pytest.raises(WriteError, match="Not a directory"), new_file(tmp_path / "file" / "a"):
        pytest.fail("nothing is begun")


def test_a_file_in_a_folder_that_is_missing_and_names_that_are_too_long(tmp_path: Path):
    with pytest.raises(WriteError, match="make the folder first"), new_file(tmp_path / "missing" / "a.npz"):
        pytest.fail("nothing is begun")
    for make in (new_file, new_folder):
        with pytest.raises(WriteError, match="choose a shorter name"), make(tmp_path / ("n" * 250)):
            pytest.fail("nothing is begun")
    assert list(tmp_path.iterdir()) == []


def test_what_safetensors_says_of_a_full_disk_is_the_systems_word(tmp_path: Path):
    from safetensors import SafetensorError

    with pytest.raises(WriteError, match="No space left on device"), refusals(tmp_path):
        raise SafetensorError("I/O error: No space left on device (os error 28)")
    with pytest.raises(SafetensorError), refusals(tmp_path):
        raise SafetensorError("something else")


LIMITED = """
import resource, sys
from pathlib import Path
import torch
import aotair
from aotair_runtime.errors import AotairError
model = torch.nn.Linear(512, 512)
kind, limit = sys.argv[2], int(sys.argv[3])
def build():
    aotair.build(model=model, out=sys.argv[1], inputs={"input": torch.ones(1, 512)})
if kind == "again":
    build()
if kind != "disk":
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    build()
except AotairError as error:
    print(type(error).__name__, str(error))
"""


@pytest.mark.parametrize("kind", [long("fresh"), "again"])
def test_a_limit_on_the_length_of_files_is_one_error(tmp_path: Path, kind: str):
    out = tmp_path / "a.aotair"
    done = subprocess.run([sys.executable, "-c", LIMITED, str(out), kind, "100000"], capture_output=True, text=True)
    assert "WriteError" in done.stdout and "File too large" in done.stdout and "ulimit -f" in done.stdout, done.stderr
    assert list(tmp_path.iterdir()) == ([out] if kind == "again" else [])
    if kind == "again":
        aotair.load(out).close()


@pytest.fixture
def small_disk(tmp_path: Path):
    """A file system of 1 MB, where the tests may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=600k", "none", str(folder)], capture_output=True
    )
    if not mounted or mounted.returncode:
        pytest.skip("nothing can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)])


def test_a_full_disk_is_one_error(small_disk: Path):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(small_disk / "a.aotair"), "disk", "0"], capture_output=True, text=True
    )
    assert "WriteError" in done.stdout and "No space left on device" in done.stdout, done.stdout + done.stderr
    assert list(small_disk.iterdir()) == []


# ---- what a disk forgets ---------------------------------------------------------------------------------------------


@dataclass
class Disk:
    """What lies below a folder, by inode, and what of it is on the disk: the bytes of files and the names in folders
    that were synced. A machine that loses power keeps these, and of what came later anything or nothing."""

    root: Path
    names: dict[int, dict[str, int]] = field(default_factory=dict)
    synced_names: dict[int, dict[str, int]] = field(default_factory=dict)
    synced_bytes: dict[int, bytes] = field(default_factory=dict)
    moments: list[tuple[dict, dict, dict]] = field(default_factory=list)

    def look(self) -> None:
        """Remember what is there now. Folders that have been removed keep the names that they had last."""
        for folder in (self.root, *(entry for entry in self.root.rglob("*") if entry.is_dir())):
            self.names[folder.stat().st_ino] = {entry.name: entry.stat().st_ino for entry in folder.iterdir()}
        self.moments.append(({**self.names}, {**self.synced_names}, {**self.synced_bytes}))

    def sync(self, descriptor: int) -> None:
        self.look()
        inode = os.fstat(descriptor).st_ino
        if inode in self.names:
            self.synced_names[inode] = self.names[inode]
        else:
            self.synced_bytes[inode] = os.pread(descriptor, 1 << 20, 0)
        self.look()

    def everything(self) -> None:
        for entry in (self.root, *self.root.rglob("*")):
            descriptor = os.open(entry, os.O_RDONLY)
            self.look()
            self.sync(descriptor)
            os.close(descriptor)

    def images(self, place_of: str):
        """What a power loss at each moment may leave at the place: contents by name, None where nothing is there."""
        top = self.root.stat().st_ino
        for names, synced_names, synced_bytes in self.moments:
            folders = [inode for inode in names if names[inode] != synced_names.get(inode, {})]
            for kept in itertools.product((False, True), repeat=len(folders)):
                seen = {inode: synced_names.get(inode, {}) for inode in names}
                seen |= {inode: names[inode] for inode, is_kept in zip(folders, kept) if is_kept}
                inode = seen[top].get(place_of)
                yield None if inode is None else dict(_files(inode, seen, synced_bytes, ""))


def _files(inode: int, names: dict, content: dict, above: str):
    for name, child in names[inode].items():
        if child in names:
            yield from _files(child, names, content, f"{above}{name}/")
        else:
            yield f"{above}{name}", content.get(child, b"").decode()


@contextlib.contextmanager
def recorded(disk: Disk, monkeypatch, without: str = ""):
    """Each call that changes names or syncs is looked at; `without`: this one is left out, as by a fault."""
    with monkeypatch.context() as patched:
        for call in ("rename", "replace", "unlink", "rmdir", "mkdir", "fsync"):
            patched.setattr(os, call, _watched(disk, call, getattr(os, call), call == without))
        patched.setattr(place, "exchange", _watched(disk, "exchange", place.exchange, False))
        yield


def _watched(disk: Disk, call: str, real, is_left_out: bool):
    def watched(*args, **kwargs):
        if is_left_out:
            return None
        if call == "fsync":
            return disk.sync(args[0])
        disk.look()
        done = real(*args, **kwargs)
        disk.look()
        return done

    return watched


def lost(tmp_path: Path, monkeypatch, there: bool, without: str = "") -> list[object]:
    """What a power loss may leave of a replacement that is neither the old one nor the new one."""
    disk = Disk(tmp_path)
    if there:
        artifact_at(tmp_path / "a", "first")
        artifact_at(tmp_path / "a", "first")
    disk.everything()
    disk.moments.clear()
    with recorded(disk, monkeypatch, without):
        artifact_at(tmp_path / "a", "second")
    assert len(disk.moments) > 5 and content(tmp_path / "a") == whole("second")
    good = (whole("second"), whole("first") if there else None)
    last = disk.moments[-1:]
    wrong = [image for image in disk.images("a") if image not in good]
    disk.moments[:] = last
    return wrong + [image for image in disk.images("a") if image != whole("second")]


@pytest.mark.parametrize("there", [False, True])
def test_no_power_loss_leaves_half_an_artifact(tmp_path: Path, monkeypatch, there: bool):
    assert lost(tmp_path, monkeypatch, there) == []


@pytest.mark.parametrize("there", [False, True])
def test_a_power_loss_would_be_seen_if_nothing_were_synced(tmp_path: Path, monkeypatch, there: bool):
    assert lost(tmp_path, monkeypatch, there, without="fsync")


def test_in_two_steps_a_power_loss_leaves_one_of_both_somewhere(tmp_path: Path, monkeypatch):
    """At its place or set aside, where the reader looks for it."""
    artifact_at(tmp_path / "a", "first")
    disk = Disk(tmp_path)
    disk.everything()
    disk.moments.clear()
    monkeypatch.setattr(place, "exchange", lambda *_: False)
    with recorded(disk, monkeypatch):
        artifact_at(tmp_path / "a", "second")
    aside = {
        name for names, *_ in disk.moments for folder in names.values() for name in folder if name.endswith(".old")
    }
    (old,) = aside
    for at, beside in zip(disk.images("a"), disk.images(old), strict=True):
        assert at in (whole("first"), whole("second")) or (at is None and beside == whole("first"))
