"""Whether the prologue keeps the rules of the format: every part a program of the host, with results of its own."""

from .bucket_rules import BucketRules
from .demands import MAX_BYTES, Demands
from .packed import has_packed
from .prologue import as_program, tensors
from .schema import Part


class PrologueRules(Demands):
    """The rules of the prologue, whose parts keep those of buckets too."""

    def prologue(self) -> None:
        found, step = self.program.prologue, self.program.alignment
        fits = 0 <= found.arena < MAX_BYTES and not found.arena % step
        self.require(fits, "prologue.arena", f"a possible number of bytes that {step} divides", found.arena)
        for i, source in enumerate(found.sources):
            self.nbytes(source.dtype, source.shape, f"prologue.sources[{i}].shape")
            self.require(source.kind == "weight", f"prologue.sources[{i}].kind", "a weight", source.kind)
        made: set[int] = set()
        for i, part in enumerate(found.parts):
            self.part(part, made, f"prologue.parts[{i}]")
            made.update(part.makes)

    def part(self, part: Part, made: set[int], path: str) -> None:
        there, count = tensors(self.program), len(self.program.constants)
        for number in part.reads:
            self.index(number, len(there), f"{path}.reads")
            self.require(there[number].kind in ("weight", "fixed"), f"{path}.reads", "what nobody makes", number)
        for number in part.makes:
            self.index(number, count, f"{path}.makes")
            self.require(there[number].kind == "derived", f"{path}.makes", "a derived constant", number)
        once = bool(part.makes) and len({*part.makes}) == len(part.makes) and not made & {*part.makes}
        self.require(once, f"{path}.makes", "constants that no other part makes", part.makes)
        program = as_program(self.program, part)
        BucketRules(program, self.where).bucket(part.bucket, program.entry_points[0], f"{path}.bucket")
        self.require(not has_packed(part.bucket), f"{path}.bucket.tensors", "constants as they are", "packed ones")
        plain = part.bucket.streams == 1 and not part.bucket.events
        self.require(plain, f"{path}.bucket", "instructions on one stream, without events", part.bucket.streams)
        for number in part.bucket.code:
            item = self.program.instructions[number]
            name = "" if item.is_event else self.program.ops[item.op].name
            self.require(name.startswith("aten::"), f"{path}.bucket.code", "ops of torch itself", name)
