"""Calls of a library of oneDNN whose kernels are prepared when they are made, for tensors that stay where they are."""

from collections.abc import Callable
from ctypes import c_void_p
from typing import TypeVar

import torch

from .onednn_library import UNIMPLEMENTED, Argument, Kept, Library, OnednnError

_Call = TypeVar("_Call", bound="PreparedCall")


class PreparedCall:
    """A call of a kernel that is prepared once, for as many threads as there are: for others it is prepared anew.
    Raises OnednnError where there is none."""

    _threads = 0  # for how many it is prepared

    def __init__(self, library: Library):
        self._library = library
        with library.held() as kept:
            self.described(kept)

    def described(self, kept: Kept) -> tuple[c_void_p, list[Argument]]:
        """The description of the primitive, and what it is called with; oneDNN's objects go into `kept`."""
        raise NotImplementedError

    def __call__(self) -> None:
        if torch.get_num_threads() != self._threads:
            self.prepare()
        self._execute(self._primitive, self._stream, self._count, self._given)

    def prepare(self) -> None:
        """Let oneDNN write the kernel: milliseconds, and about 128 KiB, which it keeps for others of that shape."""
        kept = Kept(self._library)
        desc, args = self.described(kept)
        self._primitive, self._stream = kept.primitive(desc), kept.stream()
        self._count, self._given = len(args), (Argument * len(args))(*args)
        self._threads, self._kept, self._execute = torch.get_num_threads(), kept, self._library.execute


def require_fast(kept: Kept, desc: c_void_p | None, name: str) -> c_void_p:
    """The description, where the kernel for it has a name that begins so. Raises OnednnError."""
    if desc is None or not kept.implementation(desc).startswith(name):
        raise OnednnError("a fast kernel", UNIMPLEMENTED)
    return desc


def made_or_none(make: Callable[[], _Call]) -> _Call | None:
    """What is made; None where the library has no kernel for it."""
    try:
        return make()
    except OnednnError as error:
        if error.status == UNIMPLEMENTED:
            return None
        raise
