"""What are the graphs of an artifact called in Model Explorer, and their nodes?"""

from aotair_runtime.format.schema import Bucket, EntryPoint, Program
from aotair_runtime.format.sizes import describe


def graph_id(entry: EntryPoint, bucket: Bucket) -> str:
    """What the graph of a bucket is called."""
    return f"{entry.name}: {describe(entry, bucket.sizes)}"


def places(program: Program, bucket: Bucket) -> list[int]:
    """Where in the bucket's code its calls stand, events left out: the ids of the nodes, as numbers."""
    return [place for place, number in enumerate(bucket.code) if not program.instructions[number].is_event]
