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

from ..errors import AlteredError, FormatVersionError, MalformedError, NotAnArtifactError, TruncatedError
from .schema import (
    EXPR_OPERATORS,
    FORMAT,
    MAGIC,
    READS,
    DeviceArg,
    DTypeArg,
    HostArg,
    LayoutArg,
    MemoryFormatArg,
    Program,
    TensorArg,
    WorkspaceArg,
)

_MAX_DEPTH = 32
_ARGS = {
    "t": TensorArg,
    "dtype": DTypeArg,
    "format": MemoryFormatArg,
    "layout": LayoutArg,
    "device": DeviceArg,
    "host": HostArg,
    "workspace": WorkspaceArg,
}
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
    if version not in READS:
        raise FormatVersionError(
            "written in a format that this runtime does not read",
            where=where,
            expected="format " + " or ".join(map(str, READS)),
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
    if getattr(kind, "__metadata__", None) == ("arg",):
        return encode_arg(value)
    if typing.get_origin(kind) is tuple and isinstance(value, tuple):
        items = typing.get_args(kind)
        kinds = (items[0],) * len(value) if items[-1] is ... else items
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

# A decoder turns plain data into a value of one annotation, or raises _Wrong; the way to the fault is put together
# while that travels up, so that a good program costs nothing for it.
Decoder = typing.Callable[[object], typing.Any]


class _Wrong(Exception):
    def __init__(self, expected: str, got: object):
        self.expected, self.got = expected, got
        self.path: list[str] = []  # from the fault upwards


def _decode(kind: object, value: object, root: str, where: str) -> typing.Any:
    try:
        return _decoder(kind)(value)
    except _Wrong as wrong:
        path = root + "".join(reversed(wrong.path))
        got = repr(wrong.got)[:80]
        raise MalformedError(f"{path} is malformed", where=where, expected=wrong.expected, got=got) from wrong


@functools.cache
def _decoder(kind: typing.Any) -> Decoder:
    if dataclasses.is_dataclass(kind):
        return _dataclass_decoder(kind)
    if hasattr(kind, "__metadata__"):
        return _SPECIAL[kind.__metadata__[0]]
    origin = typing.get_origin(kind)
    if origin is tuple:
        items = typing.get_args(kind)
        alike = len(items) == 2 and items[1] is ...
        return _sequence_decoder(_decoder(items[0])) if alike else _tuple_decoder([_decoder(item) for item in items])
    if origin in (types.UnionType, typing.Union):
        inner = _decoder(typing.get_args(kind)[0])
        return lambda value: None if value is None else inner(value)
    return _scalar_decoder(kind)


def _scalar_decoder(kind: type) -> Decoder:
    def decode(value: object) -> object:
        if type(value) is kind:
            return value
        if kind is float and type(value) is int:
            return float(value)
        raise _Wrong(kind.__name__, value)

    return decode


def _sequence_decoder(item: Decoder) -> Decoder:
    def decode(value: object) -> tuple:
        done: list = []
        try:
            for part in _list(value):
                done.append(item(part))
        except _Wrong as wrong:
            wrong.path.append(f"[{len(done)}]")
            raise
        return tuple(done)

    return decode


def _tuple_decoder(items: typing.Sequence[Decoder]) -> Decoder:
    def decode(value: object) -> tuple:
        if len(_list(value)) != len(items):
            raise _Wrong(f"{len(items)} items", value)
        return tuple(item(part) for item, part in zip(items, value))

    return decode


@functools.cache
def _fields(cls: type) -> tuple[tuple[str, object], ...]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return tuple((field.name, hints[field.name]) for field in dataclasses.fields(cls))


def _dataclass_decoder(cls: type) -> Decoder:
    fields = [(name, _decoder(kind)) for name, kind in _fields(cls)]
    least = sum(field.default is dataclasses.MISSING for field in dataclasses.fields(cls))

    def decode(value: object) -> object:
        if not least <= len(_list(value)) <= len(fields):
            raise _Wrong(f"{len(fields)} fields of {cls.__name__}", value)
        done: list = []
        try:
            for (_, field), part in zip(fields, value):
                done.append(field(part))
        except _Wrong as wrong:
            wrong.path.append(f".{fields[len(done)][0]}")
            raise
        return cls(*done)

    return decode


def _decode_arg(value: object, depth: int = 0) -> object:
    if isinstance(value, _SCALARS):
        return value
    tag, *rest = _tagged(value, depth)
    if tag == "l":
        return tuple(_decode_arg(item, depth + 1) for item in rest)
    if tag not in _ARGS:
        raise _Wrong("an argument", tag)
    return _decoder(_ARGS[tag])(rest)


def _decode_expr(value: object, depth: int = 0) -> object:
    if type(value) is int:
        return value
    tag, *rest = _tagged(value, depth)
    if tag == "dim" and len(rest) == 1 and type(rest[0]) is int:
        return ("dim", rest[0])
    if tag not in EXPR_OPERATORS or len(rest) < 2:
        raise _Wrong("a size expression", value)
    return (tag, *(_decode_expr(item, depth + 1) for item in rest))


def _decode_tree(value: object, depth: int = 0) -> tuple:
    tag, *rest = _tagged(value, depth)
    if tag in _TREE_LEAVES:
        if len(rest) != 1 or not isinstance(rest[0], _SCALARS) or (tag == "tensor" and type(rest[0]) is not int):
            raise _Wrong("a leaf of the output structure", value)
        return (tag, rest[0])
    keys: tuple = ()
    if tag in ("dict", "record", "named"):
        count = 1 if tag == "dict" else 2
        head, rest = rest[:count], rest[count:]
        if not head or len(_list(head[-1])) != len(rest):
            raise _Wrong("as many keys as children", value)
        keys = (*head[:-1], tuple(head[-1]))
        if not all(isinstance(key, (str, int)) for key in (*keys[:-1], *keys[-1])):
            raise _Wrong("keys that are strings or ints", value)
    elif tag not in ("tuple", "list"):
        raise _Wrong("an output structure", tag)
    return (tag, *keys, *(_decode_tree(item, depth + 1) for item in rest))


_SPECIAL = {"arg": _decode_arg, "expr": _decode_expr, "tree": _decode_tree}


def _tagged(value: object, depth: int) -> list:
    if depth > _MAX_DEPTH:
        raise _Wrong(f"at most {_MAX_DEPTH} levels", "more")
    items = _list(value)
    if not items or not isinstance(items[0], str):
        raise _Wrong("an array that begins with a tag", value)
    return items


def _list(value: object) -> list:
    if not isinstance(value, list):
        raise _Wrong("an array", value)
    return value
