"""Which tensors does a checkpoint hold, and where: a .safetensors file, or a directory as Hugging Face lays it out.

A directory holds `model.safetensors.index.json` and the shards that its `weight_map` names, or `model.safetensors`, or
any .safetensors files. It is untrusted: headers are read and compared before any tensor is.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch

from ..errors import WeightsError

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_MOST_INDEX_BYTES = 1 << 28
_MARKS, _MARKED = 4, 256  # places of a tensor that are looked at to tell checkpoints apart, and their bytes
DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
}


@dataclass(frozen=True)
class Stored:
    """A tensor of a checkpoint, as the header of its file described it, by the `name` that it has there; or one that
    it holds in `pieces`, in rows that are stacked where `stacked`, of which each is one behind the other."""

    name: str
    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    version: tuple[int, ...] = ()  # of the file, when its header was read
    pieces: "tuple[tuple[Stored, ...], ...]" = ()
    stacked: bool = False


@dataclass(frozen=True)
class Checkpoint:
    """`tensors` by name, file by file."""

    path: Path
    tensors: Mapping[str, Stored]

    def shards(self) -> Iterator[dict[str, torch.Tensor]]:
        """The tensors of each file in turn, mapped; those of one are let go before the next is opened."""
        by_file: dict[Path, list[str]] = {}
        for name, stored in self.tensors.items():
            by_file.setdefault(stored.file, []).append(name)
        for file, names in by_file.items():
            with _opened(file) as handle:
                yield {name: _tensor(handle, self.tensors[name]) for name in names}

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor, mapped; or put together."""
        stored = self.tensors[name]
        if stored.pieces:
            return _joined(stored)
        with _opened(stored.file) as handle:
            return _tensor(handle, stored)

    def piece(self, name: str, number: int, count: int) -> torch.Tensor | None:
        """That one of `count` equal parts of a tensor along its first dimension, where each is a piece of its own; the
        others are not read then."""
        stored = self.tensors[name]
        pieces = stored.pieces[0] if stored.pieces and not stored.stacked else ()
        if len(pieces) != count or len({piece.shape for piece in pieces}) > 1:
            return None
        own = pieces[number]
        if own.pieces:
            return _joined(own)
        with _opened(own.file) as handle:
            return _tensor(handle, own)


def mark(checkpoint: Checkpoint) -> str:
    """A digest of what tensors a checkpoint holds, whatever their files, and of some bytes of each: another one has
    another, as good as surely, and no more of it is read."""
    found = list[str]()
    for tensors in checkpoint.shards():
        for name, tensor in tensors.items():
            data = tensor.reshape(-1).view(torch.uint8)
            looked = hashlib.sha256()
            for start in range(0, len(data), max(_MARKED, len(data) // _MARKS)):
                looked.update(bytes(data[start : start + _MARKED].tolist()))
            found.append(f"{name} {tensor.dtype} {tuple(tensor.shape)} {looked.hexdigest()}")
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()


def open_checkpoint(path: Path) -> Checkpoint:
    """Read the headers of all files. Raises WeightsError."""
    if path.is_dir():
        index = path / INDEX
        files, mapped = _indexed(index) if index.is_file() else (_plain(path), None)
    else:
        files, mapped = [path], None
    if not files or (mapped is None and not files[0].is_file()):
        raise WeightsError(
            "there are no weights here",
            where=str(path),
            expected="a .safetensors file, or a directory that holds some, with or without an index",
        )
    tensors: dict[str, Stored] = {}
    for file in files:
        found = _header(file)
        if mapped is not None:
            _check_shard(file, found, mapped)
        twice = [name for name in found if name in tensors]
        if twice:
            other = tensors[twice[0]].file.name
            raise WeightsError(f"{some(twice)} lies in two files", where=str(path), got=f"{other} and {file.name}")
        tensors |= found
    return Checkpoint(path, tensors)


def some(names: Sequence[str]) -> str:
    """A few of the names, and how many more there are."""
    text = ", ".join(names[:5]) or "none"
    return f"{text} and {len(names) - 5} more" if len(names) > 5 else text


def _plain(folder: Path) -> list[Path]:
    whole = folder / WHOLE
    return [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))


# ---- the index -----------------------------------------------------------------------------------------------------


def _indexed(index: Path) -> tuple[list[Path], dict[str, str]]:
    """The shards that an index names, and which of them holds each tensor."""
    mapped = _weight_map(index)
    shards = sorted(set(mapped.values()))
    for shard in shards:
        # A file of the directory by its plain name; what a link there points to is its owner's business.
        if Path(shard).name != shard or not shard.endswith(".safetensors") or "\\" in shard or "\0" in shard:
            raise WeightsError(
                "the index names a shard outside of its directory",
                where=str(index),
                expected="names of .safetensors files beside the index",
                got=repr(shard)[:80],
            )
    missing = [shard for shard in shards if not (index.parent / shard).is_file()]
    if missing:
        raise WeightsError(
            f"shards are missing: {some(missing)}",
            where=str(index),
            expected=f"{len(shards)} shards",
            got=f"{len(shards) - len(missing)}",
            fix="copy the checkpoint again",
        )
    if (index.parent / WHOLE).is_file() and WHOLE not in shards:
        raise WeightsError(
            "there is an index of shards, and a whole checkpoint beside it",
            where=str(index),
            got=f"{INDEX} and {WHOLE}",
            fix="remove the one that is not meant",
        )
    return [index.parent / shard for shard in shards], mapped


def _weight_map(index: Path) -> dict[str, str]:
    try:
        if index.stat().st_size > _MOST_INDEX_BYTES:
            raise ValueError(f"it has more than {_MOST_INDEX_BYTES} bytes")
        data = json.loads(index.read_text(encoding="utf-8"), object_pairs_hook=_distinct)
    except (ValueError, RecursionError, OSError) as error:
        raise WeightsError(f"the index cannot be read as JSON: {error}", where=str(index)) from error
    mapped = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(mapped, dict) or not mapped or not all(isinstance(shard, str) for shard in mapped.values()):
        raise WeightsError(
            "the index has no weight_map",
            where=str(index),
            expected='{"weight_map": {"NAME": "FILE.safetensors", …}}',
            got=repr(mapped if mapped else data)[:80],
        )
    return mapped


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"it names {name!r} twice: {found[name]!r} and {value!r}"[:200])
        found[name] = value
    return found


def _check_shard(file: Path, found: Mapping[str, Stored], mapped: Mapping[str, str]) -> None:
    """Raises WeightsError where a shard does not hold what the index says, all of it and nothing else."""
    absent = [name for name, shard in mapped.items() if shard == file.name and name not in found]
    others = [name for name in found if mapped.get(name) != file.name]
    if absent or others:
        elsewhere = [f"{name} (in {mapped[name]})" for name in others if name in mapped]
        raise WeightsError(
            "the shard does not hold what the index says",
            where=str(file),
            expected=f"every tensor that the index puts there; missing: {some(absent)}",
            got=f"tensors in two shards: {some(elsewhere)}"
            if elsewhere
            else f"tensors that the index does not put there: {some(others)}",
            fix="copy the checkpoint again",
        )


# ---- one file ------------------------------------------------------------------------------------------------------


def _header(file: Path) -> dict[str, Stored]:
    version = _version(file)
    with _opened(file) as handle:
        return {name: _stored(file, name, handle.get_slice(name), version) for name in sorted(handle.keys())}


def _stored(file: Path, name: str, item: Any, version: tuple[int, ...]) -> Stored:
    kind = DTYPES.get(item.get_dtype())
    if kind is None:
        raise WeightsError(
            f"{name} has a dtype that torch does not have",
            where=str(file),
            expected=some(list(DTYPES)),
            got=str(item.get_dtype()),
        )
    return Stored(name, file, kind, tuple(item.get_shape()), version)


def _tensor(handle: safetensors.safe_open, stored: Stored) -> torch.Tensor:
    """What was described is still there, or a WeightsError."""
    try:
        found: torch.Tensor | None = handle.get_tensor(stored.name)
    except safetensors.SafetensorError:
        found = None
    same = found is not None and (found.dtype, tuple(found.shape)) == (stored.dtype, stored.shape)
    if found is None or not same or _version(stored.file) != stored.version:
        raise WeightsError(
            "the file was changed while it was read",
            where=str(stored.file),
            fix="load it again once nobody writes to it; write checkpoints aside and rename them",
        )
    return found


def _joined(stored: Stored) -> torch.Tensor:
    """A tensor of all its pieces, each file of which is opened once; a piece may be made of others itself."""
    with contextlib.ExitStack() as stack:
        files = {piece.file: piece for pieces in stored.pieces for piece in pieces if not piece.pieces}
        handles = {file: stack.enter_context(_opened(file)) for file in files}

        def tensor(piece: Stored) -> torch.Tensor:
            return _joined(piece) if piece.pieces else _tensor(handles[piece.file], piece)

        rows = (torch.cat([tensor(piece) for piece in pieces]) for pieces in stored.pieces)
        if not stored.stacked:
            return next(rows)
        whole = torch.empty(stored.shape, dtype=stored.dtype)
        for place, row in zip(whole, rows):
            place.copy_(row)
        return whole


def _version(file: Path) -> tuple[int, ...]:
    """Which file this is, and when it was written to last."""
    try:
        found = os.stat(file)
    except (OSError, ValueError) as error:
        raise WeightsError(f"not readable as safetensors: {error}", where=str(file)) from error
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _opened(file: Path) -> safetensors.safe_open:
    try:
        return safetensors.safe_open(str(file), framework="pt")
    except (safetensors.SafetensorError, OSError) as error:
        raise WeightsError(f"not readable as safetensors: {error}", where=str(file)) from error


def dtype_fault(have: torch.dtype, want: torch.dtype, cast: bool) -> bool:
    """Whether a stored dtype cannot serve as another: nothing is converted but, with `cast`, floating to floating."""
    return have != want and not (cast and have.is_floating_point and want.is_floating_point)


def same_bytes(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether tensors of one dtype and shape are equal bit for bit."""
    first, *others = (tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for tensor in tensors)
    return all(torch.equal(first, other) for other in others)
