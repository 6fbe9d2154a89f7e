"""How do several ranks of an artifact become one replica? Actors of Ray load it together, and follow the first one."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import ray
import torch.distributed as dist
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import aotair_runtime
from aotair_runtime import Model
from aotair_runtime.errors import ArgumentError, RankError
from aotair_runtime.format.mesh import mesh_text, ranks_of, spoken_axes
from aotair_runtime.format.schema import Program

_JOIN = timedelta(seconds=300)


@dataclass(frozen=True)
class Load:
    """What each of `count` ranks loads, where they meet where they are several (an address of the first one's), and for
    how long they wait for each other in calls, in seconds."""

    artifact: str
    options: Mapping[str, Any]
    address: str
    count: int
    timeout: float

    def joined(self, rank: int) -> Model:
        """The model, once all ranks have come. Raises a subclass of AotairError where it cannot be loaded."""
        if self.count > 1:
            try:
                dist.init_process_group("gloo", f"tcp://{self.address}", _JOIN, world_size=self.count, rank=rank)
            except RuntimeError as error:
                raise RankError(f"the ranks of a replica did not find each other: {error}") from error
        return aotair_runtime.load(
            self.artifact, **{**self.options, "rank_timeout": self.timeout, "enable_output_clone": True}
        )


@ray.remote
class _Follower:
    """A rank but the first."""

    def follow(self, load: Load, rank: int) -> int:
        """Load with the others and make their calls, until the first one ends it; gives how many."""
        with load.joined(rank) as model:
            return model.follow()


class Followers:
    """The other ranks of a replica, each in a bundle of its own of the replica's placement group; they end with it."""

    def __init__(self, load: Load, resources: Mapping[str, float]):
        group, others = get_current_placement_group(), range(1, load.count)
        if group is None:
            raise RankError("a replica of several ranks has no placement group")
        kinds = actor_options(resources)
        self._actors = [  # kept: an actor ends where nobody has its handle any more
            _Follower.options(  # type: ignore[attr-defined]  # `ray.remote` adds it
                **kinds,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=group, placement_group_bundle_index=rank
                ),
            ).remote()
            for rank in others
        ]
        self._runs = [actor.follow.remote(load, rank) for actor, rank in zip(self._actors, others, strict=True)]

    def lost(self) -> str:
        """Why one of them makes no calls any more; empty where all do."""
        ended, _ = ray.wait(self._runs, num_returns=len(self._runs), timeout=0)
        for rank, run in enumerate(self._runs, start=1):
            if run not in ended:
                continue
            try:
                ray.get(run)
            except ray.exceptions.RayError as error:
                return f"rank {rank} is lost: {_last_line(error)}"
            return f"rank {rank} has ended"
        return ""


def refuse_undriven(program: Program) -> None:
    """Raises ArgumentError where the first rank cannot make the calls of all of them."""
    if ranks_of(program.mesh) == 1:
        return
    if program.own_inputs:
        raise ArgumentError(
            "the first rank cannot make the calls of ranks that have inputs of their own",
            got=mesh_text([program.mesh[number] for number in program.own_inputs]),
            fix="serve it from processes that torchrun starts, each of which calls the model itself",
        )
    spoken = spoken_axes(program)
    if apart := [axis for number, axis in enumerate(program.mesh) if axis.size > 1 and number not in spoken]:
        raise ArgumentError(
            "ranks that say nothing to each other are replicas, which Ray Serve makes itself",
            got=mesh_text(apart),
            fix="build without these axes, and say num_replicas",
        )


def meeting_place() -> str:
    """An address of this node, and a port of it that is free now."""
    with socket.socket() as found:
        found.bind(("", 0))
        address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]  # Ray leaves it untyped
        return f"{address}:{found.getsockname()[1]}"


def actor_options(resources: Mapping[str, float]) -> dict[str, Any]:
    """Resources as the options of an actor take them."""
    others = {name: amount for name, amount in resources.items() if name not in ("CPU", "GPU")}
    return {"num_cpus": resources.get("CPU", 0), "num_gpus": resources.get("GPU", 0), "resources": others}


def _last_line(error: BaseException) -> str:
    """What is wrong, where the lines before it are the traceback of another process."""
    return str(error).strip().rpartition("\n")[2][:300]
