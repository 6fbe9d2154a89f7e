"""Hostile calls: those of `seeds`, with sizes, strides, dtypes, numbers and lists that nobody would write."""

import dataclasses
import random

import torch

from aotair_runtime.format import schema

from .seeds import Call, Spec

SIZES = (0, 1, 2, 3, 5, 7, 16, 33)
INTS = (0, 1, -1, 2, 3, 7, 100, -100, 1 << 20, 1 << 31, -(1 << 31), (1 << 31) - 1, 1 << 45, -(1 << 45), (1 << 63) - 1)
FLOATS = (0.0, 1.0, -1.0, 0.5, 1e-9, 1e30, -1e30, float("inf"), float("-inf"), float("nan"), 3.7, 1e18)
DTYPES = ("float32", "int64", "bool", "float64", "bfloat16", "float16", "int32", "uint8", "int8", "complex64", "int16")
TEXTS = ("none", "floor", "trunc", "mean", "sum", "amax", "prod", "reflect", "gelu", "tanh", "zeros", "x" * 60)


def hostile(call: Call, rng: random.Random) -> Call:
    """A call with some of its arguments changed."""
    args, kwargs = list(call.args), dict(call.kwargs)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3, 4))):
        places: list[object] = [*range(len(args)), *kwargs]
        if not places:
            break
        place = rng.choice(places)
        if isinstance(place, int):
            args[place] = changed(args[place], rng, args)
        else:
            kwargs[place] = changed(kwargs[place], rng, args)
    return Call(call.name, tuple(args), tuple(kwargs.items()))


def changed(value: object, rng: random.Random, others: list) -> object:
    if isinstance(value, Spec):
        return _tensor(value, rng, [other for other in others if isinstance(other, Spec)])
    if isinstance(value, (list, tuple)):
        return _list(list(value), rng, others)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((value + 1, value - 1, -value, rng.choice(INTS)))
    if isinstance(value, float):
        return rng.choice((value * -1, rng.choice(FLOATS)))
    if isinstance(value, str):
        return rng.choice(TEXTS)
    if isinstance(value, torch.dtype):
        return getattr(torch, rng.choice(DTYPES))
    if value is None:
        return rng.choice((None, 1, rng.choice(INTS), 0.5, True, *others[:2]))
    return value


def _list(value: list, rng: random.Random, others: list) -> list:
    how = rng.randrange(5)
    if how == 0 and value:
        del value[rng.randrange(len(value))]
    elif how == 1:
        value.insert(rng.randrange(len(value) + 1), rng.choice([*value, 0, 1, rng.choice(INTS)]))
    elif how == 2:
        rng.shuffle(value)
    elif value:
        number = rng.randrange(len(value))
        value[number] = changed(value[number], rng, others)
    return value


def _tensor(value: Spec, rng: random.Random, others: list[Spec]) -> Spec:
    how, shape = rng.randrange(9), list(value.shape)
    if how == 8 and rng.random() < 0.3:
        return rng.choice((2, 1.5, True))
    if how == 0:
        return dataclasses.replace(value, dtype=rng.choice(DTYPES))
    if how == 1 and shape:
        shape[rng.randrange(len(shape))] = rng.choice(SIZES)
    elif how == 2:
        shape.insert(rng.randrange(len(shape) + 1), rng.choice(SIZES))
    elif how == 3 and shape:
        del shape[rng.randrange(len(shape))]
    elif how == 4:  # repeated, or turned
        strides = [0 if rng.random() < 0.5 else stride for stride in value.strides]
        return dataclasses.replace(value, strides=tuple(strides))
    elif how == 5 and len(shape) > 1:
        order = rng.sample(range(len(shape)), len(shape))
        return dataclasses.replace(
            value, shape=tuple(shape[i] for i in order), strides=tuple(value.strides[i] for i in order)
        )
    elif how == 6 and others:
        return rng.choice(others)
    elif how == 7:  # gaps
        return dataclasses.replace(value, strides=tuple(stride * 2 for stride in value.strides))
    else:
        return dataclasses.replace(value, high=rng.choice((-1, 0, 1, 2, 100, 1 << 31, 1 << 62)))
    return dataclasses.replace(value, shape=tuple(shape), strides=plain(shape))


def plain(shape: list[int]) -> tuple[int, ...]:
    """The strides of a tensor without gaps."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def argument(value: object, tensors: list[Spec]) -> schema.Arg:
    """An argument as an artifact has it; tensors are numbered in the order of `tensors`, which grows."""
    if isinstance(value, Spec):
        tensors.append(value)
        return schema.TensorArg(len(tensors) - 1)
    if isinstance(value, (list, tuple)):
        return tuple(argument(item, tensors) for item in value)
    if isinstance(value, torch.dtype):
        return schema.DTypeArg(str(value).removeprefix("torch."))
    if isinstance(value, torch.memory_format):
        return schema.MemoryFormatArg(str(value).removeprefix("torch."))
    if isinstance(value, torch.layout):
        return schema.LayoutArg(str(value).removeprefix("torch."))
    return schema.DeviceArg() if isinstance(value, torch.device) else value
