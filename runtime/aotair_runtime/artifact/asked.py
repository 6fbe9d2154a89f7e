"""Which program of an artifact for several meshes is meant: that of a mesh, or of a number of ranks?"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..errors import ArgumentError, RankError
from ..format.mesh import mesh_text, meshes_text, ranks_of, sizes_of
from ..format.schema import Axis

Mesh = tuple[Axis, ...]


@dataclass(frozen=True)
class Asked:
    """The program for `mesh`; where None is said, that for so many `ranks`, by default for one."""

    mesh: Mesh | None = None
    ranks: Callable[[], int] = lambda: 1

    def number(self, meshes: Sequence[Mesh], where: str) -> int:
        """Which of these meshes is meant. Raises RankError where none of them is, or two are."""
        if self.mesh is not None:
            fitting = [number for number, mesh in enumerate(meshes) if _shared(mesh) == _shared(self.mesh)]
            asked = f"the mesh {mesh_text(self.mesh)}"
        else:
            count = self.ranks()
            fitting = [number for number, mesh in enumerate(meshes) if ranks_of(mesh) == count]
            asked = "1 rank" if count == 1 else f"{count} ranks"
        if not fitting:
            raise RankError(
                f"the artifact has no program for {asked}",
                where=where,
                expected=meshes_text(meshes),
                got=asked,
                fix="start as many processes as one of these has ranks (torchrun --nproc-per-node), or name the mesh: "
                "load(mesh={AXIS: RANKS}), --mesh AXIS=RANKS",
            )
        if len(fitting) > 1:
            raise RankError(
                f"the artifact has several programs for {asked}",
                where=where,
                expected=f"a word which: {meshes_text(meshes[number] for number in fitting)}",
                got=asked,
                fix=f"name the mesh: load(mesh={sizes_of(meshes[fitting[0]])}), or --mesh on the command line",
            )
        return fitting[0]


def _shared(mesh: Mesh) -> Mesh:
    """The axes along which there is more than one rank."""
    return tuple(axis for axis in mesh if axis.size > 1)


@dataclass(frozen=True)
class Among(Asked):
    """The same, where there are several: the only program of an artifact is meant whatever its mesh is."""

    def number(self, meshes: Sequence[Mesh], where: str) -> int:
        return 0 if len(meshes) == 1 else super().number(meshes, where)


class AnyOf(Asked):
    """The program for one rank, or else the first: where it is all one which is read."""

    def number(self, meshes: Sequence[Mesh], where: str) -> int:
        return meshes.index(()) if () in meshes else 0


def asked_for(mesh: object) -> Asked:
    """The program for this mesh, axes and numbers of ranks; for one rank where None is said."""
    return Asked() if mesh is None else Asked(mesh_of(mesh))


def mesh_of(sizes: object) -> Mesh:
    """The mesh that a mapping from axes to numbers of ranks says; one rank has no axes. Raises ArgumentError."""
    items = list(sizes.items()) if isinstance(sizes, Mapping) else None
    if items is None or not all(isinstance(name, str) and type(size) is int and size > 0 for name, size in items):
        raise ArgumentError(
            "mesh= is wrong",
            expected='numbers of ranks by axis, {"tp": 4}; {} is one rank',
            got=repr(sizes)[:80],
        )
    mesh = tuple(Axis(name, size) for name, size in items)
    return mesh if ranks_of(mesh) > 1 else ()
