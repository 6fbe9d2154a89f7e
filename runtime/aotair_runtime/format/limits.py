"""The most that an artifact may hold or ask for, each limit with its reason: what exceeds one is refused unread."""

from .mesh import parts_of, stored_tensors
from .schema import Program, State

# A program of 24 layers and 16 buckets has some hundreds of kilobytes; one that is as long as this takes a few GB to
# be looked through, which is what a file may ask for by its length alone.
MOST_PROGRAM_BYTES = 64 << 20
# Files that are read whole: a tokenizer of 256,000 tokens has 35 MB.
MOST_COMPANION_BYTES = 256 << 20
MOST_DEBUG_BYTES = 64 << 20  # a few bytes for each instruction, and each line of a model once
MOST_INT = 1 << 46  # of a size or an amount: more than any memory has bytes, and far from where products overflow
MOST_ITEMS = 4096  # of a list that an op takes: tensors that are joined, sizes, pads
# Of tensors that checkpoints hold in pieces: 100 layers of 512 experts have 150,000, with names of 60 letters.
MOST_PIECES, MOST_LETTERS_OF_PIECES = 1 << 20, 1 << 27
MOST_MESHES = 16  # of an artifact: a program for each
MOST_LETTERS = 64  # of a text that an op takes: the names of modes are short
# What a safetensors header says of one tensor beside its name: dtype, up to 64 sizes, two offsets.
_MOST_OF_A_TENSOR = 2048
_BYTES_OF_A_LETTER = 12  # as JSON escapes one outside of the basic plane
_LAST = ("", ".at", ".is", ".slack")  # of a golden tensor, by `weights/golden.py`


def most_weights_header(program: Program) -> int:
    """The longest header that a weights file can have: it names the constants of the artifact's programs and nothing
    else."""
    stored = stored_tensors(program)
    return _header(sum(len(tensor.name) for tensor in stored), len(stored))


def most_golden_header(program: Program) -> int:
    """The longest header that golden tensors can have: inputs, outputs and what a call changes, of each bucket."""
    letters = count = 0
    states = [len(name) for state in program.state for name in _parts(program, state)]
    for entry in program.entry_points:
        inputs = [len(spec.name) for spec in entry.inputs]
        names = 2 * (sum(inputs) + len(inputs)) + sum(states)
        of_bucket = 2 * len(inputs) + len(states) + len(entry.outputs)
        count += of_bucket * len(_LAST) * len(entry.buckets)
        letters += (names + of_bucket * (len(entry.name) + 40)) * len(_LAST) * len(entry.buckets)
    return _header(letters, count)


def _parts(program: Program, state: State) -> list[str]:
    """What its golden tensors are called: one name, or one for each part that ranks have of it."""
    shard = program.constants[state.constant].shard
    return [state.name] if shard is None else [f"{state.name}:{number}" for number in range(parts_of(shard))]


def known_names(program: Program) -> frozenset[str]:
    """The tensors that a weights file holds."""
    return frozenset(tensor.name for tensor in stored_tensors(program))


def _header(letters: int, count: int) -> int:
    return 1024 + letters * _BYTES_OF_A_LETTER + count * _MOST_OF_A_TENSOR
