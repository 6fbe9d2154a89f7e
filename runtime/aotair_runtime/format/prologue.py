"""The prologue: how a part of it is read as a program of its own, and what its constants follow from."""

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
    there, found = tensors(program), dict[str, tuple[str, ...]]()
    for part in program.prologue.parts:
        read = tuple(there[number].name for number in part.reads)
        found |= {there[number].name: read for number in part.makes}
    return found
