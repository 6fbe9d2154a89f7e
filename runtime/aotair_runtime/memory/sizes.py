"""How many bytes do a tensor of a program, and what a bucket's instructions allocate by themselves, take?"""

from ..format.schema import Bucket, Constant, Layout
from ..format.torch_names import dtype


def tensor_bytes(item: Constant | Layout) -> int:
    """The bytes of a tensor without gaps."""
    total = dtype(item.dtype).itemsize
    for size in item.shape:
        total *= size
    return total


def fresh_bytes(bucket: Bucket) -> int:
    """What a bucket's instructions allocate beside the arena: on each stream one at a time."""
    streams = {item.stream for item in bucket.fresh}
    return sum(max(item.nbytes for item in bucket.fresh if item.stream == stream) for stream in streams)
