"""An artifact's directory, opened once: each file in it is opened once too, and what is checked is what is used.

Files are opened relative to the directory's descriptor, never through a link, and kept open: whoever exchanges the
directory or a file meanwhile changes what the next load reads, not this one.
"""

import contextlib
import errno
import os
import stat
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import MalformedError, NotAnArtifactError, TruncatedError, UnreadableError

MOST_FILES, MOST_FOLDERS = 10_000, 8  # that are listed: an artifact with a tokenizer has a dozen, in one folder
_AGAIN = "copy the artifact again"
_AT_ONCE = 1 << 30  # bytes of one read: the system gives no more than 2 GiB
_READ_ONLY = os.O_RDONLY | os.O_CLOEXEC
# Without O_NONBLOCK a pipe of that name would wait for somebody who writes.
_FILE = _READ_ONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_FOLDER = _READ_ONLY | os.O_DIRECTORY


@dataclass(frozen=True)
class State:
    """What a file is like from outside; one that is written to has another."""

    nbytes: int
    written: int
    changed: int  # rights, links and names of it too

    @classmethod
    def of(cls, found: os.stat_result) -> "State":
        return cls(found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class Descriptor:
    """The number of an open file; it is closed when nobody has this object any more, or by `close`."""

    def __init__(self, number: int):
        self.number = number
        self._end = weakref.finalize(self, os.close, number)
        self._end.atexit = False

    def close(self) -> None:
        self._end()


@dataclass(frozen=True)
class OpenFile:
    """A regular file, open for reading; `where` names it in errors, `state` is what it was like when it was opened."""

    where: str
    opened: Descriptor
    state: State

    @property
    def descriptor(self) -> int:
        return self.opened.number

    @property
    def nbytes(self) -> int:
        return self.state.nbytes

    def state_now(self) -> State:
        """What it is like now. Raises UnreadableError."""
        with unreadable(self.where):
            return State.of(os.fstat(self.descriptor))

    def content(self, most: int) -> bytes:
        """All its bytes. Raises MalformedError where there are more than `most`, before any is read."""
        if self.nbytes > most:
            raise MalformedError(
                "the file is longer than any that is read whole",
                where=self.where,
                expected=f"at most {most:,} bytes",
                got=f"{self.nbytes:,}",
            )
        data = bytearray(self.nbytes)
        with unreadable(self.where):
            count = read_into(memoryview(data), self.descriptor)
        return bytes(data[:count])


class Folder:
    """The directory at `path` and the files of it that have been asked for; they are closed when nobody has it any
    more, or by `close`. Raises NotAnArtifactError where there is no directory."""

    def __init__(self, path: Path):
        self.path = path
        self._files: dict[str, OpenFile] = {}
        try:
            with unreadable(str(path)):
                self._root = Descriptor(os.open(path, _FOLDER))
        except (FileNotFoundError, NotADirectoryError, ValueError) as error:
            there = isinstance(error, NotADirectoryError) and os.path.lexists(path)
            raise NotAnArtifactError(
                "this is not an artifact, but a file" if there else "there is nothing at this path",
                where=str(path),
                expected="the directory that a build has written",
            ) from error

    def has(self, name: str) -> bool:
        """Whether there is a file of that name; it is open from now on."""
        try:
            self.file(name)
        except TruncatedError:
            return False
        return True

    def file(self, name: str) -> OpenFile:
        """The file of that name, below this directory, opened at the first call. Raises TruncatedError where there is
        none, MalformedError where it is no regular file of this directory's own, UnreadableError."""
        if name not in self._files:
            where = str(self.path / name)
            opened = Descriptor(self._descriptor(name, where))
            with _closed_on_error(opened):
                with unreadable(where):
                    found = os.fstat(opened.number)
                if not stat.S_ISREG(found.st_mode):
                    raise _irregular(where, "something else")
            self._files[name] = OpenFile(where, opened, State.of(found))
        return self._files[name]

    def _descriptor(self, name: str, where: str) -> int:
        *folders, last = name.split("/")
        at = self._root.number
        try:
            with contextlib.ExitStack() as passed, unreadable(where):
                for folder in folders:
                    at = os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=at)
                    passed.callback(os.close, at)
                return os.open(last, _FILE, dir_fd=at)
        except FileNotFoundError as error:
            raise TruncatedError("the file is missing", where=where, fix=_AGAIN) from error
        except (NotADirectoryError, ValueError) as error:
            raise _irregular(where, "a link or a file on the way to it") from error

    def names(self) -> list[str]:
        """All files and links of the directory and of those in it, by their names within. Raises MalformedError where
        these are more than any artifact has."""
        found: list[str] = []
        with unreadable(str(self.path)):
            self._gather(self._root.number, "", found)
        return found

    def _gather(self, at: int, before: str, found: list[str]) -> None:
        for name in os.listdir(at):
            place = before + name
            if not stat.S_ISDIR(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
                found.append(place)
            elif place.count("/") < MOST_FOLDERS:
                below = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=at)
                try:
                    self._gather(below, place + "/", found)
                finally:
                    os.close(below)
            if len(found) > MOST_FILES or place.count("/") >= MOST_FOLDERS:
                what = "more files, or folders in folders, than an artifact has"
                raise MalformedError(what, where=str(self.path), expected=f"at most {MOST_FILES} and {MOST_FOLDERS}")

    def accept(self, name: str, state: State) -> None:
        """Take for unchanged, from now on, a file that is like this."""
        self._files[name] = replace(self.file(name), state=state)

    def is_elsewhere(self) -> bool:
        """Whether another directory lies at the path by now, or none."""
        try:
            return not os.path.samestat(os.fstat(self._root.number), os.stat(self.path))
        except OSError:
            return True

    def closed_on_error(self) -> contextlib.AbstractContextManager[None]:
        """Around what it was opened for: where that fails, it is closed, though the error may be kept."""
        return _closed_on_error(self)

    def close(self) -> None:
        """Close it, and the files that were opened here, whoever has them."""
        for opened in (self._root, *(file.opened for file in self._files.values())):
            opened.close()


@contextlib.contextmanager
def _closed_on_error(item: Descriptor | Folder) -> Iterator[None]:
    try:
        yield
    except BaseException:
        item.close()
        raise


def read_into(view: memoryview, descriptor: int) -> int:
    """Fill memory with what an open file holds from its beginning on; how many bytes there were."""
    start = 0
    while start < len(view) and (count := os.preadv(descriptor, [view[start : start + _AT_ONCE]], start)):
        start += count
    return start


@contextlib.contextmanager
def unreadable(where: str) -> Iterator[None]:
    """Where the system refuses within, and not because something is missing, that is an UnreadableError."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _irregular(where, "a link") from error
        raise UnreadableError(
            f"the system does not let it be read: {error.strerror}",
            where=where,
            fix=_FIXES.get(error.errno or 0, ""),
        ) from error


_FIXES = {
    errno.EMFILE: "let the process open more files (ulimit -n), or close models",
    errno.EACCES: "give whoever loads it the right to read it",
    errno.ENOMEM: "load it where there is more memory",
}


def _irregular(where: str, got: str) -> MalformedError:
    return MalformedError(
        "no regular file of the artifact's own: links are not followed",
        where=where,
        expected="a plain file within the artifact",
        got=got,
        fix="copy what the link stands for into its place (cp -L, rsync --copy-links)",
    )
