"""Which bytes a tensor reaches, and which inputs of a call have to be set aside because the call writes there first."""

import bisect
from collections.abc import Callable, Sequence

import torch

Span = tuple[int, int]  # the address of the first byte, and of the one behind the last


def span(tensor: torch.Tensor) -> Span:
    """The bytes that the elements of `tensor` reach from the first to the last, with the gaps between them."""
    if not tensor.numel():
        return 0, 0
    reach = 1 + sum([(size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride())])
    start = tensor.data_ptr()
    return start, start + reach * tensor.element_size()


def meet(one: Span, other: Span) -> bool:
    """Whether two spans have a byte in common."""
    return one[0] < other[1] and other[0] < one[1]


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the bytes of `tensor` are its values in their order: no gaps, and no conjugate or negative view, whose
    values are others than its bytes."""
    return tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())


class Spans:
    """Spans that do not meet each other, to be asked whether another one meets any of them."""

    def __init__(self, spans: Sequence[Span]):
        found = sorted(item for item in spans if item[0] < item[1])
        self._starts, self._ends = [start for start, _ in found], [end for _, end in found]

    def meets(self, wanted: Span) -> bool:
        number = bisect.bisect_left(self._starts, wanted[1]) - 1
        return wanted[0] < wanted[1] and number >= 0 and self._ends[number] > wanted[0]


def destroyed(
    sources: Sequence[torch.Tensor], copies: Sequence[torch.Tensor], fills: Sequence[tuple[int, torch.Tensor]]
) -> list[int]:
    """The numbers of the `sources` into which a call would write before it has read them all.

    The call fills regions first, each for the source of that number (-1: for none of them), and then copies each source
    to its place among `copies`. A source that lies exactly where its own copy does stays as it is.
    """
    places = [*((number, span(copy)) for number, copy in enumerate(copies)), *((n, span(fill)) for n, fill in fills)]
    found = []
    for number, source in enumerate(sources):
        mine, stays = span(source), same_place(source, copies[number])
        if any(meet(mine, place) for owner, place in places if not (stays and owner == number)):
            found.append(number)
    return found


def same_place(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype are the same elements in the same order."""
    same = one.data_ptr() == other.data_ptr() and one.stride() == other.stride()
    return same and one.is_conj() == other.is_conj() and one.is_neg() == other.is_neg()


def with_copies(
    tensors: Sequence[torch.Tensor],
    numbers: Sequence[int],
    copies: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]],
) -> list[torch.Tensor]:
    """`tensors`, with those of these `numbers` replaced by what `copies` makes of them."""
    found = list(tensors)
    for number, copy in zip(numbers, copies([tensors[number] for number in numbers]), strict=True):
        found[number] = copy
    return found
