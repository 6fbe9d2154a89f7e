"""Dataclasses to bytes and back: msgpack arrays, strictly typed.

`program.msgpack` is one array `[magic, format, sha256 of body, body]`; the body is the `Program` as nested arrays.
Decoding checks every value against the annotation of the field it goes to and builds nothing else.
"""

import dataclasses
import functools
import hashlib
import types
import typing

import msgpack

from .errors import AlteredError, FormatVersionError, MalformedError, NotAnArtifactError, TruncatedError
from .schema import (
    EXPR_OPERATORS,
    FORMAT,
    MAGIC,
    DeviceArg,
    DTypeArg,
    LayoutArg,
    MemoryFormatArg,
    Program,
    TensorArg,
)

_MAX_DEPTH = 32
_ARGS = {"t": TensorArg, "dtype": DTypeArg, "format": MemoryFormatArg, "layout": LayoutArg, "device": DeviceArg}
_ARG_TAGS = {cls: tag for tag, cls in _ARGS.items()}
_TREE_LEAVES = ("tensor", "const")
_SCALARS = (type(None), bool, int, float, str)


def dump(program: Program) -> bytes:
    """The bytes of `program.msgpack`; equal programs give equal bytes."""
    body = msgpack.packb(_encode(program), use_bin_type=True)
    return msgpack.packb([MAGIC, FORMAT, hashlib.sha256(body).digest(), body], use_bin_type=True)


def parse(data: bytes, where: str) -> Program:
    """The program in `data`; `where` names the file in errors.

    Raises NotAnArtifactError, TruncatedError, FormatVersionError, AlteredError or MalformedError.
    """
    envelope = _unpack(data, where)
    if not (isinstance(envelope, list) and len(envelope) == 4 and envelope[0] == MAGIC):
        raise NotAnArtifactError(
            "not a program of aotair", where=where, expected=f"an array that begins with {MAGIC!r}"
        )
    _, version, digest, body = envelope
    if version != FORMAT:
        raise FormatVersionError(
            "written in a format that this runtime does not read",
            where=where,
            expected=f"format {FORMAT}",
            got=f"format {version!r}",
            fix="install a newer aotair-runtime, or build the artifact again",
        )
    if not isinstance(body, bytes) or hashlib.sha256(body).digest() != digest:
        raise AlteredError("the program's bytes do not match their digest", where=where, fix="copy the artifact again")
    return _decode(Program, _unpack(body, where), "program", where)


def _unpack(data: bytes, where: str) -> object:
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=True, use_list=True)
    except msgpack.OutOfData as error:
        raise TruncatedError("ends too early", where=where, fix="copy the artifact again") from error
    except (ValueError, msgpack.UnpackException) as error:
        text = str(error)
        if "incomplete" in text:
            raise TruncatedError("ends too early", where=where, fix="copy the artifact again") from error
        raise MalformedError(f"not readable as msgpack: {text}", where=where) from error


# ---- encoding ----------------------------------------------------------------------------------------------------


def _encode(value: object) -> object:
    if dataclasses.is_dataclass(value):
        return [_encode_field(getattr(value, name), kind) for name, kind in _fields(type(value))]
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _encode_field(value: object, kind: object) -> object:
    if _special(kind) == "arg":
        return encode_arg(value)
    if typing.get_origin(kind) is tuple and isinstance(value, tuple):
        kinds = _item_kinds(kind, len(value))
        return [_encode_field(item, k) for item, k in zip(value, kinds, strict=True)]
    return _encode(value)


def encode_arg(value: object) -> object:
    """An instruction's argument as plain data."""
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, tuple):
        return ["l", *map(encode_arg, value)]
    return [_ARG_TAGS[type(value)], *dataclasses.astuple(value)]


# ---- decoding ----------------------------------------------------------------------------------------------------


@functools.cache
def _fields(cls: type) -> tuple[tuple[str, object], ...]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return tuple((field.name, hints[field.name]) for field in dataclasses.fields(cls))


@functools.cache
def _required(cls: type) -> int:
    return sum(field.default is dataclasses.MISSING for field in dataclasses.fields(cls))


def _special(kind: object) -> str | None:
    return kind.__metadata__[0] if hasattr(kind, "__metadata__") else None


def _item_kinds(kind: object, length: int) -> tuple:
    items = typing.get_args(kind)
    return (items[0],) * length if len(items) == 2 and items[1] is ... else items


def _decode(kind: object, value: object, path: str, where: str) -> typing.Any:
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, value, path, where)
    special = _special(kind)
    if special is not None:
        return _SPECIAL[special](value, path, where, 0)
    origin = typing.get_origin(kind)
    if origin is tuple:
        items = _list(value, path, where)
        kinds = _item_kinds(kind, len(items))
        if len(kinds) != len(items):
            raise _wrong(path, where, f"{len(kinds)} items", items)
        return tuple(_decode(k, item, f"{path}[{i}]", where) for i, (k, item) in enumerate(zip(kinds, items)))
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        return _decode(typing.get_args(kind)[0], value, path, where)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise _wrong(path, where, kind.__name__, value)
    return value


def _decode_dataclass(cls: type, value: object, path: str, where: str) -> object:
    items, fields = _list(value, path, where), _fields(cls)
    if not _required(cls) <= len(items) <= len(fields):
        raise _wrong(path, where, f"{len(fields)} fields of {cls.__name__}", items)
    return cls(*(_decode(kind, item, f"{path}.{name}", where) for (name, kind), item in zip(fields, items)))


def _decode_arg(value: object, path: str, where: str, depth: int) -> object:
    if isinstance(value, _SCALARS):
        return value
    tag, *rest = _tagged(value, path, where, depth)
    if tag == "l":
        return tuple(_decode_arg(item, f"{path}[{i}]", where, depth + 1) for i, item in enumerate(rest))
    if tag not in _ARGS:
        raise _wrong(path, where, "an argument", tag)
    return _decode_dataclass(_ARGS[tag], rest, path, where)


def _decode_expr(value: object, path: str, where: str, depth: int) -> object:
    if type(value) is int:
        return value
    tag, *rest = _tagged(value, path, where, depth)
    if tag == "dim" and len(rest) == 1 and type(rest[0]) is int:
        return ("dim", rest[0])
    if tag not in EXPR_OPERATORS or len(rest) < 2:
        raise _wrong(path, where, "a size expression", value)
    return (tag, *(_decode_expr(item, path, where, depth + 1) for item in rest))


def _decode_tree(value: object, path: str, where: str, depth: int) -> tuple:
    tag, *rest = _tagged(value, path, where, depth)
    if tag in _TREE_LEAVES:
        if len(rest) != 1 or not isinstance(rest[0], _SCALARS) or (tag == "tensor" and type(rest[0]) is not int):
            raise _wrong(path, where, "a leaf of the output structure", value)
        return (tag, rest[0])
    keys: tuple = ()
    if tag in ("dict", "record"):
        head, rest = rest[: 1 + (tag == "record")], rest[1 + (tag == "record") :]
        if not head or len(_list(head[-1], path, where)) != len(rest):
            raise _wrong(path, where, "as many keys as children", value)
        keys = (*head[:-1], tuple(head[-1]))
        if not all(isinstance(key, (str, int)) for key in (*keys[:-1], *keys[-1])):
            raise _wrong(path, where, "keys that are strings or ints", value)
    elif tag not in ("tuple", "list"):
        raise _wrong(path, where, "an output structure", tag)
    return (tag, *keys, *(_decode_tree(item, path, where, depth + 1) for item in rest))


_SPECIAL = {"arg": _decode_arg, "expr": _decode_expr, "tree": _decode_tree}


def _tagged(value: object, path: str, where: str, depth: int) -> list:
    if depth > _MAX_DEPTH:
        raise _wrong(path, where, f"at most {_MAX_DEPTH} levels", "more")
    items = _list(value, path, where)
    if not items or not isinstance(items[0], str):
        raise _wrong(path, where, "an array that begins with a tag", value)
    return items


def _list(value: object, path: str, where: str) -> list:
    if not isinstance(value, list):
        raise _wrong(path, where, "an array", value)
    return value


def _wrong(path: str, where: str, expected: str, got: object) -> MalformedError:
    return MalformedError(f"{path} is malformed", where=where, expected=expected, got=repr(got)[:80])
