"""Whether a decoded program keeps the rules of the format: every number it holds is checked before it is believed."""

import re

from .bucket_rules import BucketRules
from .demands import DIGEST, MAX_BYTES, Demands
from .entry_rules import EntryRules
from .host_inputs import inputs_as_arguments
from .joined import piece_names
from .limits import MOST_LETTERS_OF_PIECES, MOST_PIECES
from .mesh import cuts_of, whole_shape
from .prologue import tensors
from .prologue_rules import PrologueRules
from .schema import Constant, EntryPoint, Form, Instruction, Program, Shard

_KINDS = ("", "weight", "fixed", "derived")  # of constants
_VERSION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})*([.+]?[a-z][a-zA-Z0-9.+]*)?")


def check_program(program: Program, where: str) -> None:
    """Raises MalformedError at the first rule that the program breaks."""
    rules = _Tables(program, where)
    rules.mesh()
    rules.tables()
    rules.origins()
    rules.files(program.files, "files")
    names = [entry.name for entry in program.entry_points]
    rules.require(bool(names) and len(set(names)) == len(names), "entry_points", "distinct names")
    for number, entry in enumerate(program.entry_points):
        _check_entry_point(program, entry, where, f"entry_points[{number}]")
    PrologueRules(program, where).prologue()


def _check_entry_point(program: Program, entry: EntryPoint, where: str, path: str) -> None:
    EntryRules(program, where).entry_point(entry, path)
    rules = BucketRules(program, where)
    for i, bucket in enumerate(entry.buckets):
        rules.bucket(bucket, entry, f"{path}.buckets[{i}]")
    listed = set(inputs_as_arguments(program, entry))  # of instructions that are known to name what there is
    for i, bucket in enumerate(entry.buckets):
        rules.unread(bucket, listed, f"{path}.buckets[{i}]")


class _Tables(Demands):
    """The rules of what all entry points share."""

    def mesh(self) -> None:
        """The axes of the ranks, and how each constant's parts lie in a whole tensor."""
        self.axes(self.program.mesh, "mesh")
        own, count = self.program.own_inputs, len(self.program.mesh)
        in_order = all(number < after for number, after in zip(own, (*own[1:], count)))
        self.require(in_order and all(number >= 0 for number in own), "own_inputs", "numbers of axes, in order", own)
        for i, constant in enumerate(tensors(self.program)):
            if (shard := constant.shard) is not None:
                self.shard(constant, shard, f"constants[{i}].shard")

    def shard(self, constant: Constant, shard: Shard, path: str) -> None:
        sizes, cuts = list(constant.shape), cuts_of(shard)
        self.require(len({cut.axis for cut in cuts}) == len(cuts), path, "cuts along axes of their own", shard)
        for cut in reversed(cuts):
            self.index(cut.axis, len(self.program.mesh), path)
            self.index(cut.dim, len(sizes), path)
            ranks, size = self.program.mesh[cut.axis].size, sizes[cut.dim]
            self.require(1 <= cut.parts <= ranks and not ranks % cut.parts, path, f"parts for {ranks} ranks", shard)
            fits = cut.blocks >= 1 and size >= cut.blocks and not size % cut.blocks
            self.require(fits, path, "blocks that divide the part", shard)
            sizes[cut.dim] *= cut.parts
        self.nbytes(constant.dtype, whole_shape(constant), path)

    def tables(self) -> None:
        program = self.program
        step = program.alignment
        self.require(16 <= step <= 4096 and not step & (step - 1), "alignment", "a power of two from 16 to 4096", step)
        fits = 0 <= program.arena < MAX_BYTES and program.arena % step == 0
        self.require(fits, "arena", f"a possible number of bytes that {step} divides", program.arena)
        for i, constant in enumerate(program.constants):
            self.nbytes(constant.dtype, constant.shape, f"constants[{i}].shape")
        for i, state in enumerate(program.state):
            self.index(state.constant, len(program.constants), f"state[{i}].constant")
        need, reserve = program.requirements, program.reserve
        for path, number in (
            ("requirements.memory_budget", need.memory_budget),
            ("reserve.workspace", reserve.workspace),
            ("reserve.device", reserve.device),
            ("reserve.buffer", reserve.buffer),
        ):
            self.require(0 <= number < MAX_BYTES, path, "a possible number of bytes", number)
        for path, version in (("torch_min", need.torch_min), ("vendor_min", need.vendor_min or "0")):
            self.require(bool(_VERSION.fullmatch(version)), f"requirements.{path}", "a version", version)
        self.require(0 <= need.memory_share <= 1, "requirements.memory_share", "a share", need.memory_share)
        for i, item in enumerate(program.layouts):
            path = f"layouts[{i}]"
            self.require(len(item.shape) == len(item.strides), path, "as many strides as sizes")
            self.require(
                all(0 <= s < MAX_BYTES for s in item.strides), path, "strides that are not negative", item.strides
            )
            self.nbytes(item.dtype, item.shape, path)
        for i, instruction in enumerate(program.instructions):
            self.require(instruction.form in list(Form), f"instructions[{i}].form", "a form", instruction.form)
            if instruction.is_event:
                self.event(instruction, f"instructions[{i}]")
            else:
                self.index(instruction.op, len(program.ops), f"instructions[{i}].op")

    def origins(self) -> None:
        """What constants stand for, and what the program follows from."""
        program = self.program
        seen = set(program.unread)
        self.require(len(seen) == len(program.unread), "unread", "distinct names")
        for i, constant in enumerate(tensors(program)):
            path = f"constants[{i}]"
            self.require(constant.kind in _KINDS, f"{path}.kind", "a kind of constant", constant.kind)
            fits = bool(constant.names) == bool(constant.kind) and all(constant.names)
            self.require(fits, f"{path}.names", "names for what is recorded", constant.names)
            for name in (name for group in constant.names for name in group):
                self.require(name not in seen, f"{path}.names", "names that nothing else has", name)
                seen.add(name)
        self.joined(seen)
        origin = program.origin
        for field in ("recipe", "code", "graph"):
            text = getattr(origin, field)
            self.require(bool(DIGEST.fullmatch(text)), f"origin.{field}", "a digest or nothing", text)
        said = program.quantisation
        self.require(bool(DIGEST.fullmatch(said)), "quantisation", "a digest or nothing", said)

    def joined(self, names: set[str]) -> None:
        """The tensors that checkpoints hold in pieces: some of those that have `names`, each once; and before one of
        these, such a piece of it that is held in pieces itself."""
        seen: set[str] = set()
        last = {name: i for i, item in enumerate(self.program.joined) for name in item.pieces}
        for i, item in enumerate(self.program.joined):
            path = f"joined[{i}]"
            within = last.get(item.name, 0) > i
            known = (item.name in names or within) and item.name not in seen
            self.require(known, f"{path}.name", "a name of a weight, or of a piece of a later one", item.name)
            plain = not within or seen.isdisjoint(item.pieces)
            self.require(plain, f"{path}.pieces", "pieces of a piece that are held whole", item.pieces)
            self.require(item.count >= 0, f"{path}.count", "a number of tensors, or 0", item.count)
            fits = bool(item.pieces) and all(not item.count or piece.count("{}") == 1 for piece in item.pieces)
            self.require(fits, f"{path}.pieces", "names, with one {} each where there is a count", item.pieces)
            seen.add(item.name)
        pieces = [(max(1, item.count), len(piece)) for item in self.program.joined for piece in item.pieces]
        count = sum(count for count, _ in pieces)
        self.require(count <= MOST_PIECES, "joined", f"at most {MOST_PIECES} pieces", count)
        letters = sum(count * (length + 10) for count, length in pieces)
        self.require(letters <= MOST_LETTERS_OF_PIECES, "joined", "shorter names of pieces", letters)
        every = [name for item in self.program.joined for name in piece_names(item)]
        self.require(len({*every}) == len(every), "joined", "pieces with names of their own")

    def event(self, item: Instruction, path: str) -> None:
        plain = item.op == -1 and not item.kwargs and not item.outs and len(item.args) == 1
        self.require(plain and type(item.args[0]) is int, path, "the number of an event and nothing else", item.args)
