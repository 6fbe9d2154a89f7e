"""How is work recorded into a graph that shares a pool with others, and how is a failed recording undone?"""

import contextlib
from collections.abc import Callable, Iterator

import torch

from ..errors import CaptureError
from .base import Event, Recording, Stream, Usage
from .collector import at_rest
from .vendor import Unfinished, Vendor

ANCHOR_COST = Usage(captures=1, streams=1)


class Recorder:
    """Records graphs into one pool of the caching allocator, on one stream.

    The allocator binds blocks to the stream of their capture: one stream for all, or nothing would be shared. A pool
    dies with its last graph, so a first small one (an anchor) stays as long as the recorder.
    """

    def __init__(self, vendor: Vendor, index: int, use: Callable[[Usage], None]):
        """`use` hears what anchors take of the device's limits, and, negative, what they give back."""
        self._vendor, self._index, self._use = vendor, index, use
        self.main: Stream = vendor.api.Stream(torch.device(vendor.kind, index))
        self.events: dict[int, Event] = {}  # of the recording under way
        self.pools: list[tuple[int, int]] = []  # all that it has recorded into
        self._pool: tuple[int, int] | None = None
        self._anchors: list[Recording] = []
        self._lost: list[object] = []  # graphs that never began: destroying one would end what it did not begin

    @property
    def has_pool(self) -> bool:
        """Whether there is a pool to record into: one whose recording did not begin is of no more use."""
        return self._pool is not None

    def open_pool(self, run: Callable[[], object]) -> None:
        """Take a new pool, with `run` as its first anchor. Raises CaptureError."""
        self._pool = self._vendor.api.graph_pool_handle()
        self.pools.append(self._pool)
        try:
            self.anchor(run)
        except BaseException as error:
            self._pool = None
            if isinstance(error, RuntimeError) and not isinstance(error, CaptureError):
                raise CaptureError(f"a pool of memory cannot be made: {error}") from error
            raise

    def anchor(self, run: Callable[[], object]) -> Recording:
        """A recording that is kept until `close`."""
        self._anchors.append(self.record(run))
        self._use(ANCHOR_COST)
        return self._anchors[-1]

    def record(self, run: Callable[[], object]) -> Recording:
        """What `run` asks of the device, as a graph. Raises CaptureError; nothing of it is left then."""
        graph, pool = self._vendor.new_graph(), self._pool
        assert pool is not None
        with self.recording():
            self._begin(graph, pool)
            try:
                run()
            except BaseException:
                self._abandon(graph, pool)
                raise
            try:
                graph.capture_end()
            except RuntimeError as error:
                self._vendor.release_pool(self._index, pool)
                raise CaptureError(f"the capture did not end well: {error}") from error
        return graph

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """On the capture's stream, after what the caller has issued, and without the garbage collector: it might free
        what a capture must not touch."""
        api, before = self._vendor.api, self._vendor.api.current_stream(self._index)
        with at_rest():
            self.events.clear()
            try:
                with torch.inference_mode():
                    self.main.wait_stream(before)
                    api.set_stream(self.main)
                    yield
            finally:
                api.set_stream(before)
                self.events.clear()

    def close(self) -> None:
        """Let the anchors go, and the pool with them."""
        for anchor in self._anchors:
            anchor.reset()
            self._use(Usage() - ANCHOR_COST)
        self._anchors.clear()
        self._pool = None

    def _begin(self, graph: Unfinished, pool: tuple[int, int]) -> None:
        try:
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        except RuntimeError as error:
            self._lost.append(graph)
            self._vendor.stop_allocating(self._index, pool)
            self._vendor.release_pool(self._index, pool)
            self._pool = None  # it counts as recording for good; the next capture takes a new one
            raise CaptureError(f"the capture did not begin: {error}") from error

    def _abandon(self, graph: Unfinished, pool: tuple[int, int]) -> None:
        """End a capture whose instructions failed, and drop what there is of it."""
        self._vendor.api.set_stream(self.main)
        try:
            graph.capture_end()
        except RuntimeError:  # the fault that ended `run` has spoilt the capture too: nothing of it is left
            self._vendor.release_pool(self._index, pool)
        else:
            graph.reset()
