"""Artifacts as an enemy would write them: a good program with some of its numbers, lists and names changed, or a good
weights file with another header or length, and the digests made right again."""

import copy
import dataclasses
import hashlib
import json
import random
from pathlib import Path

import msgpack

from aotair_runtime.format.schema import FORMAT, MAGIC, PROGRAM_FILE, WEIGHTS_FILE, Program

FIELDS = {field.name: number for number, field in enumerate(dataclasses.fields(Program))}

INTS = (0, 1, 2, 3, 7, 64, -1, -2, 255, 4096, 1 << 20, 1 << 31, -(1 << 31), 1 << 40, (1 << 46) - 1, 1 << 62, -(1 << 63))
OTHERS = (
    None,
    True,
    False,
    0.5,
    float("nan"),
    float("inf"),
    1e300,
    "",
    "x",
    "a" * 500,
    "\x1b[31m",
    "../x",
    b"\0",
    [],
    ["l"],
)


def body(artifact: Path) -> list:
    """The program of an artifact as nested lists."""
    return msgpack.unpackb(msgpack.unpackb((artifact / PROGRAM_FILE).read_bytes())[3], strict_map_key=True)


def write(program: list, artifact: Path, version: object = FORMAT) -> None:
    """The program with the right digest."""
    write_packed(msgpack.packb(program, use_bin_type=True), artifact, version)


def write_packed(packed: bytes, artifact: Path, version: object = FORMAT) -> None:
    """The same, of a program as bytes."""
    whole = [MAGIC, version, hashlib.sha256(packed).digest(), packed]
    (artifact / PROGRAM_FILE).write_bytes(msgpack.packb(whole, use_bin_type=True))


def mutant(packed: bytes, rng: random.Random) -> list:
    """The program that `packed` is, with one to five changes."""
    made = msgpack.unpackb(packed)
    places = list(_places(made))
    if rng.random() < 0.5:  # of the same types, so that more of it is believed
        places = [(holder, number) for holder, number in places if type(holder[number]) is int]
        for holder, number in rng.sample(places, min(len(places), rng.choice((1, 1, 2, 3)))):
            other, place = rng.choice(places)
            item = holder[number]
            holder[number] = rng.choice((item + 1, item - 1, item * 2, item // 2, other[place], rng.choice(INTS)))
        return made
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5))):
        holder, number = rng.choice(places)
        if number < len(holder):
            _change(holder, number, rng, places)
    return made


def mutant_weights(weights: bytes, rng: random.Random) -> bytes:
    """A weights file with something else in its header, or of another length."""
    size = int.from_bytes(weights[:8], "little")
    header, data, how = weights[8 : 8 + size], weights[8 + size :], rng.randrange(4)
    if how == 0:
        found = json.loads(header)
        tensors = [list(item) for item in found.items()]
        fields = [[name, *place.values()] for name, place in tensors]
        _change(fields, rng.randrange(len(fields)), rng, list(_places(fields)))
        header = json.dumps({str(name): _place(rest) for name, *rest in (f for f in fields if _is_field(f))}).encode()
    elif how == 1:
        changed = bytearray(header)
        changed[rng.randrange(len(changed))] = rng.choice(b'{}[]",:0123456789eE-.\0\xff')
        header = bytes(changed)
    elif how == 2:
        data = data[: rng.randrange(len(data) + 1)] + bytes(rng.choice((0, 1, 8, 4096)))
    else:
        size = rng.choice((size + 1, size - 1, size - 8, size + 8, 0, 1, len(weights), 1 << 31, (1 << 64) - 1))
    return (size if how == 3 else len(header)).to_bytes(8, "little") + header + data


def _is_field(field: object) -> bool:
    return isinstance(field, list) and bool(field)


def _place(rest: list) -> object:
    """What the header says of a tensor."""
    return dict(zip(("dtype", "shape", "data_offsets", "more"), rest))


def list_weights(program: list, weights: bytes) -> None:
    """Make a program list a weights file as it is now."""
    for file in program[FIELDS["files"]]:
        if file[0] == WEIGHTS_FILE:
            file[1:] = [len(weights), hashlib.sha256(weights).hexdigest(), []]


def _places(value: list):
    """Every item of every list, as (list, number); those deep within are as likely as others."""
    for number, item in enumerate(value):
        yield value, number
        if isinstance(item, list):
            yield from _places(item)


def _change(holder: list, number: int, rng: random.Random, places: list) -> None:
    item, how = holder[number], rng.randrange(12)
    if how == 0:
        holder[number] = copy.deepcopy(rng.choice(OTHERS))
    elif how == 1:
        del holder[number]
    elif how == 2:
        holder.insert(number, copy.deepcopy(item))
    elif how == 3:
        other, place = rng.choice(places)
        holder[number] = copy.deepcopy(other[place]) if place < len(other) else None
    elif how == 4 and len(holder) > 1:
        other = rng.randrange(len(holder))
        holder[number], holder[other] = holder[other], holder[number]
    elif how == 5 and rng.random() < 0.1:
        holder[number] = [copy.deepcopy(item)] * rng.choice((10, 100, 3000))
    elif how == 6 and rng.random() < 0.1:
        for _ in range(rng.choice((3, 40, 2000))):
            holder[number] = ["l", holder[number]]
    elif isinstance(item, bool):
        holder[number] = not item
    elif isinstance(item, int):
        ints = [o[n] for o, n in rng.sample(places, min(8, len(places))) if n < len(o) and type(o[n]) is int]
        holder[number] = rng.choice((item + 1, item - 1, item * 2, -item, rng.choice(INTS), *ints))
        holder[number] = max(-(1 << 63), min((1 << 64) - 1, holder[number]))
    elif isinstance(item, float):
        holder[number] = rng.choice((-item, item * 1e10, float("nan"), float("inf")))
    elif isinstance(item, str):
        names = [o[n] for o, n in rng.sample(places, min(30, len(places))) if n < len(o) and isinstance(o[n], str)]
        holder[number] = rng.choice(
            (item[:-1], item + "_", *names, "a" * 300, "aten::set_.source_Tensor", "\x1b]0;x\x07")
        )
    elif isinstance(item, list) and item:
        _change(item, rng.randrange(len(item)), rng, places)
