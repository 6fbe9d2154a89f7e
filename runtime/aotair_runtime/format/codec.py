"""Dataclasses to bytes and back: msgpack arrays, strictly typed.

`program.msgpack` is one array `[magic, format, sha256 of body, body]`; the body is the `Program` as nested arrays, or,
of an artifact for several meshes, a list of programs, each with a body of its own. Decoding checks every value against
the annotation of the field it goes to and builds nothing else.
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
    FORMAT_OF_SEVERAL,
    MAGIC,
    NOT_WRITTEN,
    READS,
    Arg,
    DeviceArg,
    DTypeArg,
    Expr,
    GroupArg,
    HostArg,
    LayoutArg,
    MemoryFormatArg,
    Program,
    Reference,
    Several,
    TensorArg,
    Tree,
    WorkspaceArg,
)

_MAX_DEPTH = 32
_ARGS: dict[str, type[Reference]] = {
    "t": TensorArg,
    "dtype": DTypeArg,
    "format": MemoryFormatArg,
    "layout": LayoutArg,
    "device": DeviceArg,
    "host": HostArg,
    "workspace": WorkspaceArg,
    "group": GroupArg,
}
_ARG_TAGS = {cls: tag for tag, cls in _ARGS.items()}
_SEQUENCES: tuple[typing.Literal["tuple", "list"], ...] = ("tuple", "list")
_WITH_FIELDS: tuple[typing.Literal["record", "named"], ...] = ("record", "named")
_SCALARS = (type(None), bool, int, float, str)


def dump(program: Program) -> bytes:
    """The bytes of `program.msgpack`; equal programs give equal bytes."""
    return _enveloped(FORMAT, dump_body(program))


def dump_several(several: Several) -> bytes:
    """The bytes of `program.msgpack` of an artifact for several meshes; equal ones give equal bytes."""
    return _enveloped(FORMAT_OF_SEVERAL, dump_body(several))


def dump_body(value: Program | Several) -> bytes:
    """What the envelope holds: equal values give equal bytes."""
    body: bytes = msgpack.packb(_encode(value), use_bin_type=True)
    return body


def _enveloped(version: int, body: bytes) -> bytes:
    whole: bytes = msgpack.packb([MAGIC, version, hashlib.sha256(body).digest(), body], use_bin_type=True)
    return whole


def parse(data: bytes, where: str) -> Program:
    """The only program in `data`; `where` names the file in errors. Raises what `parse_any` does, and MalformedError
    where there are several."""
    found = parse_any(data, where)
    if isinstance(found, Several):
        raise MalformedError("the file holds programs for several meshes", where=where, expected="one program")
    return found


def parse_any(data: bytes, where: str) -> Program | Several:
    """The program in `data`, or the list of several, whose own bodies are left as they are.

    Raises NotAnArtifactError, TruncatedError, FormatVersionError, AlteredError or MalformedError.
    """
    envelope = _unpack(data, where)
    if not (isinstance(envelope, list) and len(envelope) == 4 and envelope[0] == MAGIC):
        raise NotAnArtifactError(
            "not a program of aotair", where=where, expected=f"an array that begins with {MAGIC!r}"
        )
    _, version, digest, body = envelope
    if type(version) is not int or version not in READS:
        raise FormatVersionError(
            "written in a format that this runtime does not read",
            where=where,
            expected="format " + " or ".join(map(str, READS)),
            got=f"format {version!r}",
            fix="install a newer aotair-runtime, or build the artifact again",
        )
    if not isinstance(body, bytes) or hashlib.sha256(body).digest() != digest:
        raise AlteredError("the program's bytes do not match their digest", where=where, fix="copy the artifact again")
    if version != FORMAT_OF_SEVERAL:
        return parse_body(body, where)
    several = _decode(Several, _unpack(body, where), "programs", where)
    assert isinstance(several, Several)
    return several


def parse_body(body: bytes, where: str) -> Program:
    """The program that a body holds. Raises TruncatedError or MalformedError."""
    program = _decode(Program, _unpack(body, where), "program", where)
    assert isinstance(program, Program)
    return program


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
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
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
    assert isinstance(value, Reference), value
    return [_ARG_TAGS[type(value)], *dataclasses.astuple(value)]


# ---- decoding ----------------------------------------------------------------------------------------------------

# A decoder turns plain data into a value of one annotation, or raises _Wrong; the way to the fault is put together
# while that travels up, so that a good program costs nothing for it.
Decoder = typing.Callable[[object], object]
_Class = typing.TypeVar("_Class")


class _Wrong(Exception):
    def __init__(self, expected: str, got: object):
        self.expected, self.got = expected, got
        self.path: list[str] = []  # from the fault upwards


def _decode(kind: object, value: object, root: str, where: str) -> object:
    try:
        return _decoder(kind)(value)
    except _Wrong as wrong:
        path = root + "".join(reversed(wrong.path))
        got = repr(wrong.got)[:80]
        raise MalformedError(f"{path} is malformed", where=where, expected=wrong.expected, got=got) from wrong


@functools.cache
def _decoder(kind: typing.Hashable) -> Decoder:
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
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
    assert isinstance(kind, type), kind
    return _scalar_decoder(kind)


def _scalar_decoder(kind: type[object]) -> Decoder:
    def decode(value: object) -> object:
        if type(value) is kind:
            return value
        if kind is float and type(value) is int:
            return float(value)
        raise _Wrong(kind.__name__, value)

    return decode


def _sequence_decoder(item: Decoder) -> Decoder:
    def decode(value: object) -> tuple[object, ...]:
        done: list[object] = []
        try:
            for part in _list(value):
                done.append(item(part))
        except _Wrong as wrong:
            wrong.path.append(f"[{len(done)}]")
            raise
        return tuple(done)

    return decode


def _tuple_decoder(items: typing.Sequence[Decoder]) -> Decoder:
    def decode(value: object) -> tuple[object, ...]:
        parts = _list(value)
        if len(parts) != len(items):
            raise _Wrong(f"{len(items)} items", value)
        return tuple(item(part) for item, part in zip(items, parts))

    return decode


@functools.cache
def _fields(cls: type) -> tuple[tuple[str, typing.Hashable], ...]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return tuple((field.name, hints[field.name]) for field in _written(cls))


def _written(cls: type) -> list[dataclasses.Field[typing.Any]]:
    return [field for field in dataclasses.fields(cls) if field.metadata != NOT_WRITTEN]


def _dataclass_decoder(cls: type[_Class]) -> typing.Callable[[object], _Class]:
    described: type = cls
    fields = [(name, _decoder(kind)) for name, kind in _fields(described)]
    least = sum(field.default is dataclasses.MISSING for field in dataclasses.fields(described))

    def decode(value: object) -> _Class:
        parts = _list(value)
        if not least <= len(parts) <= len(fields):
            raise _Wrong(f"{len(fields)} fields of {cls.__name__}", value)
        done: list[object] = []
        try:
            for (_, field), part in zip(fields, parts):
                done.append(field(part))
        except _Wrong as wrong:
            wrong.path.append(f".{fields[len(done)][0]}")
            raise
        return cls(*done)

    return decode


def _decode_arg(value: object, depth: int = 0) -> Arg:
    if isinstance(value, _SCALARS):
        return value
    tag, rest = _tagged(value, depth)
    if tag == "l":
        return tuple(_decode_arg(item, depth + 1) for item in rest)
    if tag not in _REFERENCES:
        raise _Wrong("an argument", tag)
    return _REFERENCES[tag](rest)


def _decode_expr(value: object, depth: int = 0) -> Expr:
    if type(value) is int:
        return value
    tag, rest = _tagged(value, depth)
    if tag == "dim" and len(rest) == 1 and type(rest[0]) is int:
        return ("dim", rest[0])
    if tag not in EXPR_OPERATORS or len(rest) < 2:
        raise _Wrong("a size expression", value)
    operands: tuple[Expr, ...] = tuple(_decode_expr(item, depth + 1) for item in rest)
    return (tag, operands[0], *operands[1:])  # type: ignore[return-value]  # mypy joins what a star brings


def _decode_tree(value: object, depth: int = 0) -> Tree:
    tag, rest = _tagged(value, depth)
    if tag == "tensor" and len(rest) == 1 and type(rest[0]) is int:
        return ("tensor", rest[0])
    if tag == "const" and len(rest) == 1 and isinstance(rest[0], _SCALARS):
        return ("const", rest[0])
    if tag == "tensor" or tag == "const":
        raise _Wrong("a leaf of the output structure", value)
    if tag in _SEQUENCES:
        return (tag, *_trees(rest, depth))  # type: ignore[return-value]  # mypy joins what a star brings
    if tag == "dict":
        keys = _keys(rest[:1], len(rest) - 1, value)
        return ("dict", keys, *_trees(rest[1:], depth))  # type: ignore[return-value]  # mypy joins what a star brings
    if tag not in _WITH_FIELDS:
        raise _Wrong("an output structure", tag)
    keys = _keys(rest[1:2], len(rest) - 2, value)
    fields = tuple(key for key in keys if isinstance(key, str))
    if not isinstance(rest[0], str) or len(fields) != len(keys):
        raise _Wrong("a type and fields that are named by strings", value)
    return (tag, rest[0], fields, *_trees(rest[2:], depth))


def _trees(values: list[object], depth: int) -> tuple[Tree, ...]:
    return tuple(_decode_tree(value, depth + 1) for value in values)


def _keys(head: list[object], count: int, value: object) -> tuple[str | int, ...]:
    """The keys of `count` children."""
    if not head or len(_list(head[0])) != count:
        raise _Wrong("as many keys as children", value)
    keys = tuple(key for key in _list(head[0]) if isinstance(key, (str, int)))
    if len(keys) != count:
        raise _Wrong("keys that are strings or ints", value)
    return keys


_SPECIAL: dict[str, Decoder] = {"arg": _decode_arg, "expr": _decode_expr, "tree": _decode_tree}
_REFERENCES = {tag: _dataclass_decoder(cls) for tag, cls in _ARGS.items()}


def _tagged(value: object, depth: int) -> tuple[str, list[object]]:
    if depth > _MAX_DEPTH:
        raise _Wrong(f"at most {_MAX_DEPTH} levels", "more")
    items = _list(value)
    if not items or not isinstance(items[0], str):
        raise _Wrong("an array that begins with a tag", value)
    return items[0], items[1:]


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise _Wrong("an array", value)
    return value
