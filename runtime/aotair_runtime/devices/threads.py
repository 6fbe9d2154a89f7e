"""With how many threads does the host compute? Torch and all libraries beside it take the number from OpenMP, which
keeps one for each thread that calls."""

import contextlib
from collections.abc import Callable, Iterator

import torch


@contextlib.contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Within the block, ops that this thread calls share the work among `count` threads; None: as many as before."""
    before = torch.get_num_threads()
    if count is None or count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def with_threads(run: Callable[[], object], count: int | None) -> Callable[[], object]:
    """`run`, called within `threads(count)`."""
    if count is None:
        return run

    def replay() -> object:
        with threads(count):
            return run()

    return replay
