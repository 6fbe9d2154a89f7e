"""Which program of several is meant, and does it fit to what the list of them says? Checked before it is believed."""

from collections import Counter
from dataclasses import replace

from . import codec
from .demands import Rules
from .limits import MOST_MESHES
from .mesh import mesh_text, ranks_of, whole_shape
from .rules import check_program
from .schema import Beside, Constant, Pieces, Program, Several, Stored


def own_golden_file(number: int) -> str:
    """Where the golden tensors lie that the program of that number alone has."""
    return f"golden.{number}.safetensors"


def own_debug_file(number: int) -> str:
    """Where it is said of the program of that number what its instructions come from."""
    return f"debug.{number}.msgpack"


def check_several(several: Several, where: str) -> None:
    """Raises MalformedError at the first rule that the list of programs breaks; their bodies are not looked at."""
    rules, meshes = Rules(where, "programs"), [one.mesh for one in several.programs]
    rules.require(2 <= len(meshes) <= MOST_MESHES, "programs", f"from 2 to {MOST_MESHES} programs", len(meshes))
    rules.files(several.files, "files")
    for number, one in enumerate(several.programs):
        path = f"programs[{number}]"
        rules.axes(one.mesh, f"{path}.mesh")
        rules.require(not one.mesh or ranks_of(one.mesh) > 1, f"{path}.mesh", "no axes, or several ranks", one.mesh)
        rules.require(one.mesh not in meshes[:number], f"{path}.mesh", "a mesh of its own", mesh_text(one.mesh))
        rules.files(one.golden, f"{path}.golden")
        named = [file.name for file in one.golden]
        own = own_golden_file(number)
        rules.require(named in ([], [own]), f"{path}.golden", f"{own} or nothing", named)
    names = [tensor.name for tensor in several.stored]
    rules.require(len({*names}) == len(names), "stored", "tensors with names of their own", _first_twice(names))
    for number, tensor in enumerate(several.stored):
        rules.nbytes(tensor.dtype, tensor.shape, f"stored[{number}].shape")


def program_of(several: Several, number: int, where: str) -> Program:
    """The program of that number, with all that the list says of it. Raises MalformedError where it breaks a rule of
    its own, or does not fit to the list, which was checked."""
    one, place = several.programs[number], f"{where}, the program for {mesh_text(several.programs[number].mesh)}"
    program = codec.parse_body(one.body, place)
    rules = Rules(place, "program")
    rules.require(program.mesh == one.mesh, "mesh", mesh_text(one.mesh), mesh_text(program.mesh)[:80])
    rules.require(program.name == several.name, "name", repr(several.name)[:80], program.name)
    rules.require(not program.files, "files", "none but those of the list", [file.name for file in program.files])
    beside = Beside(tuple(item.mesh for item in several.programs), number, several.stored, one.pieces)
    program = replace(program, files=(*several.files, *one.golden), beside=beside)
    check_program(program, place)
    _check_constants(program, rules)
    return program


def _check_constants(program: Program, rules: Rules) -> None:
    """Each constant is a tensor of the weights file, or lies there in pieces, and no two are the same."""
    known = {tensor.name: tensor for tensor in program.beside.stored}
    pieces: dict[int, Pieces] = {}
    for i, item in enumerate(program.beside.pieces):
        rules.index(item.constant, len(program.constants), f"pieces[{i}].constant")
        rules.require(item.constant not in pieces, f"pieces[{i}].constant", "a constant of its own", item.constant)
        pieces[item.constant] = item
    used: list[str] = []
    for number, constant in enumerate(program.constants):
        path, mine = f"constants[{number}]", pieces.get(number)
        held = [Stored(constant.name, constant.dtype, whole_shape(constant))]
        if mine is not None:
            held = _held(constant, mine, rules, path)
        for tensor in held:
            expected = f"{tensor.dtype}{list(tensor.shape)} in the list of stored tensors"
            rules.require(known.get(tensor.name) == tensor, path, expected, known.get(tensor.name, tensor.name))
        used += {tensor.name: None for tensor in held}  # a rank has one of the pieces: two of these may be one
    rules.require(len({*used}) == len(used), "constants", "tensors of their own in the file", _first_twice(used))


def _held(constant: Constant, pieces: Pieces, rules: Rules, path: str) -> list[Stored]:
    """The tensors in which a constant has to lie."""
    shard, whole = constant.shard, whole_shape(constant)
    fits = shard is not None and shard.dim == 0 and shard.blocks == 1 and shard.parts == len(pieces.names)
    rules.require(fits, f"{path}.shard", f"{len(pieces.names)} parts along the first dimension", shard)
    shape = (whole[0] // len(pieces.names), *whole[1:])
    return [Stored(name, constant.dtype, shape) for name in pieces.names]


def _first_twice(names: list[str]) -> str | None:
    return next((name[:80] for name, count in Counter(names).items() if count > 1), None)
