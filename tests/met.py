"""How often do the ranks of a program meet in a call?"""

from collections import Counter

from aotair_runtime.format.mesh import group_argument
from aotair_runtime.format.schema import Program


def collectives(program: Program) -> Counter:
    """How often each is called in a bucket."""
    code = program.entry_points[0].buckets[0].code
    names = [program.ops[program.instructions[number].op].name for number in code]
    return Counter(name.partition(".")[0].rstrip("_") for name in names if group_argument(name))
