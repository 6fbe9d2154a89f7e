"""The prologue: how a part of it is read as a program of its own, and what its constants follow from."""

from collections.abc import Sequence
from dataclasses import replace

from .schema import Constant, EntryPoint, Input, Part, Program


def tensors(program: Program) -> tuple[Constant, ...]:
    """What the parts of the prologue number: the program's constants, then the sources."""
    return (*program.constants, *program.prologue.sources)


def as_program(program: Program, part: Part) -> Program:
    """A part as a program: its constants are what the part reads, and its only entry point writes what the part makes
    into its mutated inputs."""
    there = tensors(program)
    made = tuple(there[number] for number in part.makes)
    inputs = tuple(Input(item.name, "mutated", item.dtype, item.shape, None, None) for item in made)
    entry = EntryPoint("prologue", (), inputs, (), ("tuple",), (part.bucket,), (0,))
    constants = tuple(there[number] for number in part.reads)
    return replace(program, constants=constants, state=(), arena=program.prologue.arena, entry_points=(entry,))


def follows_from(program: Program) -> dict[str, tuple[str, ...]]:
    """For each constant that a part makes, the names of what it is made of."""
    there = tensors(program)
    return {there[made].name: _names(there, part.reads) for part in program.prologue.parts for made in part.makes}


def _names(there: Sequence[Constant], numbers: Sequence[int]) -> tuple[str, ...]:
    return tuple(there[number].name for number in numbers)
