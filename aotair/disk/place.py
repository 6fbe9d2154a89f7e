"""A folder or a file is written beside its place and put there whole: the one way in which anything is replaced.

1. It gets a temporary name beside its place, which says whose it is (`owner`).
2. All its files, and its folders, are synced.
3. It and what was there change places in one step (`exchange`), or, where the system has no such step, what was there
   is set aside under a name that ends with `.old`, and the new one is renamed. Whoever reads between the two finds the
   one set aside; the next build puts it back if nobody is left to go on.
4. The folder of both is synced, and only then is what was there removed.

So there is the old one or the new one, whole, whatever ends the process or the machine. What an ended process leaves is
removed by the next that writes to the same place.
"""

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from aotair_runtime.artifact.open import SET_ASIDE

from ..errors import WriteError
from .exchange import exchange
from .owner import leftovers, locked, temporary, unlock

_TRIES = 100
_SYSTEMS_NUMBER = re.compile(r"os error (\d+)")
_FIXES = {
    errno.ENOSPC: "make room on the disk, or choose another place with -o",
    errno.EDQUOT: "make room on the disk, or choose another place with -o",
    errno.EFBIG: "let the process write longer files (ulimit -f), or choose another file system",
    errno.EMFILE: "let the process open more files (ulimit -n)",
    errno.ENFILE: "let the system open more files",
    errno.EACCES: "choose another place with -o, or get the right to write there",
    errno.EROFS: "choose another place with -o",
    errno.ENOENT: "make the folder first",
    errno.ENAMETOOLONG: "choose a shorter name",
}


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder that becomes `out` when the block ends well, and is removed when it does not; folders above `out` are
    made where they are missing. A link at `out` stays, and what it stands for is replaced. Raises WriteError."""
    with contextlib.ExitStack() as undone:
        with refusals(out):
            target = Path(os.path.realpath(out))
            made: list[Path] = []
            undone.callback(_remove_empty, made)
            _make_parents(target.parent, made)
            _clean(target)
            aside = temporary(target)
            aside.mkdir(0o700)
            undone.callback(_remove, aside)
            undone.callback(unlock, locked(aside))
        yield aside
        with refusals(out):
            os.chmod(aside, 0o755)
            _sync_all(aside)
            _put(aside, target)


@contextlib.contextmanager
def new_file(out: Path, beside: Path | None = None) -> Iterator[Path]:
    """The path of an empty file that becomes `out`, as `new_folder` does; it keeps the rights of what it replaces.
    `beside`: the folder that it belongs into, and lies beside until it is whole. Raises WriteError, also where there is
    no folder for it."""
    with contextlib.ExitStack() as undone:
        with refusals(out):
            target = Path(os.path.realpath(out))
            owner = target if beside is None else Path(os.path.realpath(beside))
            _clean(owner)
            aside = temporary(owner)
            undone.callback(_remove, aside)
            os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
            undone.callback(unlock, locked(aside))
        with refusals(out):
            yield aside
            if target.is_file():
                shutil.copymode(target, aside)
            _sync(aside)
            os.replace(aside, target)
            _sync(target.parent)


@contextlib.contextmanager
def refusals(where: Path) -> Iterator[None]:
    """What the system refuses within is one WriteError."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = error.errno if isinstance(error, OSError) else _number(str(error))
        if number is None:
            raise
        what = os.strerror(number)
        raise WriteError(f"it cannot be written: {what}", where=str(where), fix=_FIXES.get(number, "")) from error


def _number(text: str) -> int | None:
    """The system's number of an error, as Rust tells it."""
    found = _SYSTEMS_NUMBER.search(text)
    return int(found[1]) if found else None


# ---- into its place --------------------------------------------------------------------------------------------------


def _put(aside: Path, target: Path) -> None:
    """What lies aside is at its target, and what was there lies aside, or is gone."""
    for _ in range(_TRIES):
        try:
            if not os.path.lexists(target):
                os.rename(aside, target)
            elif not exchange(aside, target):
                _put_in_two_steps(aside, target)
            break
        except OSError as error:  # somebody else was here meanwhile
            if error.errno not in (errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY):
                raise
    else:
        raise OSError(errno.EBUSY, "others go on replacing it", str(target))
    _sync(target.parent)


def _put_in_two_steps(aside: Path, target: Path) -> None:
    old = temporary(target, SET_ASIDE)
    os.rename(target, old)
    try:
        _sync(target.parent)
        os.rename(aside, target)
    except BaseException:
        if not os.path.lexists(target):
            os.rename(old, target)
        raise
    _sync(target.parent)
    _remove(old)


def _clean(target: Path) -> None:
    """Remove what ended processes have left here, and put back what one of them had set aside."""
    with leftovers(target) as found:
        for left in found:
            if left.is_aside and not os.path.lexists(target):
                os.rename(left.path, target)
                _sync(target.parent)
            else:
                _remove(left.path)


def _make_parents(folder: Path, made: list[Path]) -> None:
    """Make a folder and those above it; those that were missing are added to `made`, the lowest first."""
    if not folder.exists():
        _make_parents(folder.parent, made)
        folder.mkdir(exist_ok=True)
        made.insert(0, folder)
        _sync(folder.parent)


def _remove_empty(folders: list[Path]) -> None:
    with contextlib.suppress(OSError):  # not empty: the new one lies there
        for folder in folders:
            folder.rmdir()


def _remove(path: Path) -> None:
    """A file, a link or a folder with all it holds; opens one file at a time, where no more may be open."""
    with contextlib.suppress(OSError):
        if path.is_symlink() or not path.is_dir():
            path.unlink()
            return
        for name in os.listdir(path):
            _remove(path / name)
        path.rmdir()


# ---- onto the disk ---------------------------------------------------------------------------------------------------


def _sync_all(folder: Path) -> None:
    """What a folder holds, and its names, are on the disk."""
    for place, _, names in os.walk(folder, topdown=False):
        for name in names:
            _sync(Path(place, name))
        _sync(Path(place))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that syncs no folders
            raise
    finally:
        os.close(descriptor)
