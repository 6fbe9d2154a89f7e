"""From planned buckets to plain data: instructions, tensors and arguments, each stored once."""

import torch

from aotair_runtime.artifact.open import read_program
from aotair_runtime.format.schema import Space


def test_buckets_share_instructions(built):
    program = read_program(built("encoder"))
    (entry,) = program.entry_points
    run = sum(len(bucket.code) for bucket in entry.buckets)
    assert len(program.instructions) < run / 2


def test_the_plan_holds_in_the_program_too(built):
    """No two tensors of the arena that are alive at once share a byte, told from the program alone."""
    for name in ("encoder", "views", "structured"):
        program = read_program(built(name))
        for bucket in program.entry_points[0].buckets:
            _check_no_live_byte_is_written(program, bucket)


def _check_no_live_byte_is_written(program, bucket) -> None:
    """Replay the program on a map of bytes: each read must find what the last write of that tensor's bytes left."""
    from aotair_runtime.format.schema import Form, TensorArg
    from aotair_runtime.format.torch_names import dtype

    owner: dict[int, object] = {}

    def span(number: int) -> set[int]:
        tensor = bucket.tensors[number]
        if tensor.space != Space.ARENA:
            return set()
        layout = program.layouts[tensor.layout]
        width = dtype(layout.dtype).itemsize
        meta = torch.empty_strided(layout.shape, layout.strides, device="meta")
        index = torch.arange(meta.untyped_storage().nbytes() // 4).as_strided(layout.shape, layout.strides).flatten()
        return {tensor.offset + int(i) * width + k for i in index.tolist() for k in range(width)}

    def flat(values):
        for value in values:
            if isinstance(value, tuple):
                yield from flat(value)
            elif isinstance(value, TensorArg):
                yield value.index

    for number in bucket.inputs:
        owner |= dict.fromkeys(span(number), "input")
    for step, code in enumerate(bucket.code):
        instruction = program.instructions[code]
        args = list(flat((*instruction.args, *(v for _, v in instruction.kwargs))))
        writes = list(instruction.outs) if instruction.form != Form.EFFECT else args[:1]
        reads = args if instruction.form != Form.EFFECT else args[1:]
        written = set().union(*(span(n) for n in writes if n >= 0)) if writes else set()
        for number in reads:
            bytes_read = span(number)
            assert all(byte in owner for byte in bytes_read), f"{instruction.node} reads what nobody wrote"
            if instruction.form != Form.EFFECT:
                assert not bytes_read & written, f"{instruction.node} overwrites its own input"
        owner |= dict.fromkeys(written, step)
    for number in bucket.outputs:
        assert all(byte in owner for byte in span(number))
