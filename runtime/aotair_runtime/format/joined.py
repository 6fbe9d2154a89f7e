"""What are the pieces called in which checkpoints hold a tensor of the model?"""

from collections.abc import Iterator

from .schema import Joined


def tensors_of_pieces(item: Joined) -> list[list[str]]:
    """The names of the pieces of each tensor that is stacked; of an only one where nothing is."""
    if not item.count:
        return [list(item.pieces)]
    return [[piece.replace("{}", str(number)) for piece in item.pieces] for number in range(item.count)]


def piece_names(item: Joined) -> Iterator[str]:
    """All of them, in order."""
    return (name for names in tensors_of_pieces(item) for name in names)
