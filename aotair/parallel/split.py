"""The model as rank 0 has it, made of the whole one; every other rank runs the same program over other parts."""

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from aotair_runtime.devices import groups
from aotair_runtime.errors import AotairError
from aotair_runtime.format.mesh import again, part_of, within
from aotair_runtime.format.schema import Axis, Joined, Shard

from ..errors import ModelError, user_frame
from ..model.tied_names import JOINED
from .plan import Planned, own_plan, planned, units_of
from .stages import STAGES, keep_first_stage, named_tensors
from .styles import STYLES, CannotCut, Cut, Place, share_out


@dataclass(frozen=True)
class Part:
    """A tensor that ranks share out: the whole, and how it is cut."""

    whole: Tensor
    shard: Shard


@dataclass(frozen=True)
class Split:
    """`model`: rank 0's. `parts`: by name, its tensors that are parts of others. `kept`: what stays whole on every rank
    though the plan names it, and why; `styles`: how many modules of each style there are. `stages`: by their names in
    `model`, what the whole model calls the tensors that stand for those of several layers. `own_inputs`: the numbers of
    the axes along which ranks are called with inputs of their own."""

    model: nn.Module
    parts: Mapping[str, Part]
    mesh: tuple[Axis, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    styles: Mapping[str, int] = field(default_factory=dict)
    stages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    own_inputs: tuple[int, ...] = ()

    def weights(self) -> tuple[int, int]:
        """The bytes of a rank's weights, and those of them that every rank has."""
        sizes = {name: weight.nbytes for name, weight in self.model.named_parameters()}
        return sum(sizes.values()), sum(size for name, size in sizes.items() if name not in self.parts)


def split(model: nn.Module, mesh: Sequence[Axis], parallel: str | Mapping[str, str], where: str) -> Split:
    """Raises ModelError where nothing can be shared out, or a pattern names nothing."""
    if not mesh:
        return Split(model, {})
    plan = own_plan(model, mesh) if isinstance(parallel, str) else planned(model, parallel, mesh, where)
    if not plan:
        raise ModelError(
            "mesh: nothing of the model is shared out",
            where=where,
            expected="a model of transformers with a plan of its own, or parallel: {PATTERN: STYLE}",
            got=type(model).__name__,
        )
    if isinstance(parallel, str) and _has_stages(mesh) and not any(one.style == STAGES for one in plan):
        raise ModelError(
            "mesh: pp is for layers in stages, and the model has no list of layers",
            where=where,
            expected="a ModuleList or Sequential with two layers or more",
            got=type(model).__name__,
            fix="leave out pp, or name the list: parallel: {PATTERN: stages}",
        )
    own = _copied(model)
    splitter = _Splitter(own, model, mesh, where)
    splitter.share_out([one for one in plan if one.style != STAGES])
    for one in plan:
        if one.style == STAGES:
            splitter.keep_first_stage(one)
    if not splitter.styles:
        raise ModelError(
            "mesh: nothing of the model can be shared out over so many ranks",
            where=where,
            got="; ".join(f"{name}: {why}" for name, why in list(splitter.kept.items())[:4]),
            fix="choose numbers of ranks that divide the model's heads, widths and experts, and for each module a "
            "style that is for such",
        )
    splitter.cut_states()
    inputs = tuple(sorted(splitter.own_inputs))
    return Split(own, splitter.parts, tuple(mesh), splitter.kept, splitter.styles, splitter.stages, inputs)


def _has_stages(mesh: Sequence[Axis]) -> bool:
    return any(axis.name == "pp" for axis in mesh)


def _copied(model: nn.Module) -> nn.Module:
    """Modules of their own, over the same tensors."""
    tensors = [*model.parameters(), *model.buffers()]
    found: nn.Module = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    return found


class _Splitter:
    def __init__(self, model: nn.Module, whole: nn.Module, mesh: Sequence[Axis], where: str):
        self._model, self._whole, self._mesh, self._where = model, whole, mesh, where
        self.parts: dict[str, Part] = {}
        self.kept: dict[str, str] = {}
        self.styles: dict[str, int] = {}
        self.stages: dict[str, tuple[str, ...]] = {}
        self.own_inputs = set[int]()
        self._cut: dict[int, tuple[Shard, nn.Parameter]] = {}  # by the whole parameter: tied ones are cut once

    def share_out(self, plan: Sequence[Planned]) -> None:
        """All modules of one parent, or none: what one makes the next one takes."""
        by_parent: dict[str, list[Planned]] = {}
        for one in plan:
            by_parent.setdefault(self._unit(one), []).append(one)
        for unit, members in by_parent.items():
            try:
                self._refuse_beside(unit, members)
                cuts = [(one, list(self._cuts(one))) for one in members]
            except CannotCut as why:
                what, ranks = why.args
                text = f"{what}, for {ranks} ranks" if ranks else what
                self.kept |= {unit or "the model": text}
                continue
            for one, found in cuts:
                self._share_out(one, found)
            self._settle_heads(unit, members)

    def _unit(self, one: Planned) -> str:
        """Layers that feed each other are shared out together; an embedding, a head, or experts alone."""
        return one.name.rpartition(".")[0] if one.style in ("colwise", "rowwise") else one.name

    def _cuts(self, one: Planned) -> Iterator[Cut]:
        module = self._model.get_submodule(one.name)
        parent = self._model.get_submodule(one.name.rpartition(".")[0])
        for cut in STYLES[one.style].cuts(module, one.place, units_of(module, parent, one.style)):
            known = self._cut.get(id(getattr(module, cut.name, None)))
            if known is not None and known[0] != cut.shard:
                raise CannotCut(f"{cut.name} is tied to a weight that is cut otherwise", 0)
            yield cut

    def _refuse_beside(self, unit: str, members: Sequence[Planned]) -> None:
        """Raises CannotCut where something else in the unit has a row for each of the heads that are shared out."""
        parent = self._model.get_submodule(unit)
        cut = {one.name for one in members}
        columns = [one for one in members if one.style == "colwise"]
        heads = {units_of(self._model.get_submodule(one.name), parent, one.style) for one in columns} - {0, 1}
        for name, tensor in parent.named_parameters(prefix=unit):
            rows = tensor.shape[0] if tensor.dim() else 0
            is_width = tensor.dim() == 1 and rows == getattr(parent, "head_dim", None)
            if name.rpartition(".")[0] not in cut and rows in heads and not is_width:
                raise CannotCut(f"{name.removeprefix(unit + '.')} has a row for each head, and no style", 0)

    def _share_out(self, one: Planned, cuts: Sequence[Cut]) -> None:
        module = self._model.get_submodule(one.name)
        for cut in cuts:
            self._put(module, one.name, cut)
        style = STYLES[one.style]
        share_out(module, style, one.place)
        if style.divided:
            setattr(module, style.divided, getattr(module, style.divided) // one.place.size)
        if style.own_inputs:
            self.own_inputs.add(one.place.number)
        self.styles[one.style] = self.styles.get(one.style, 0) + 1

    def _put(self, module: nn.Module, path: str, cut: Cut) -> None:
        whole = cut.values if cut.values is not None else getattr(module, cut.name)
        self.parts[f"{path}.{cut.name}"] = Part(whole.detach(), cut.shard)
        if cut.values is not None:
            module.register_buffer(cut.name, part_of(whole, cut.shard, 0).clone(), persistent=False)
            return
        if id(whole) not in self._cut:
            part = nn.Parameter(part_of(whole.detach(), cut.shard, 0).clone(), requires_grad=False)
            self._cut[id(whole)] = (cut.shard, part)
        if cut.name in module._parameters:
            module._parameters[cut.name] = self._cut[id(whole)][1]
        else:
            module._buffers[cut.name] = self._cut[id(whole)][1].detach()

    def _settle_heads(self, unit: str, members: Sequence[Planned]) -> None:
        """Where neighbours have the same heads of keys, a rank's heads of queries are fewer for each of them."""
        parent: Any = self._model.get_submodule(unit)
        parts = {}
        for one in members:
            layer, shard = self._model.get_submodule(one.name), self.parts.get(f"{one.name}.weight")
            if isinstance(layer, nn.Linear) and shard is not None and one.style == "colwise":
                layer.out_features = layer.weight.shape[0]
                parts[one.name.rpartition(".")[2]] = shard.shard.parts
            elif isinstance(layer, nn.Linear) and one.style == "rowwise":
                layer.in_features = layer.weight.shape[1]
        if isinstance(getattr(parent, "num_key_value_groups", None), int) and {"q_proj", "k_proj"} <= parts.keys():
            parent.num_key_value_groups = parent.num_key_value_groups * parts["k_proj"] // parts["q_proj"]

    def keep_first_stage(self, one: Planned) -> None:
        """Leave of a list of layers those of the first rank along an axis. Raises ModelError where they cannot be
        stages."""
        tensors = dict(named_tensors(self._model))
        staged = keep_first_stage(self._model, self._whole, one.name, one.place, self._where)
        for name, theirs in staged.names.items():
            self._stand_for(name, theirs, tensors, one.place)
        left = (name for name in self.parts if name in staged.names or not name.startswith(staged.gone))
        self.parts = {name: self.parts[name] for name in left}
        held = (Joined(name, pieces) for name, pieces in staged.names.items() if pieces != (name,))
        setattr(self._model, JOINED, (*getattr(self._model, JOINED, ()), *held))
        self.styles[STAGES] = self.styles.get(STAGES, 0) + sum(map(len, staged.stages))
        self.kept |= staged.kept
        said: Any = getattr(self._model, "keep_first_stage", None)
        if said is not None:
            buffers: Mapping[str, tuple[str, ...]] = said(staged.stages)
            whole = dict(named_tensors(self._whole))
            for name, theirs in buffers.items():
                self._stand_for(name, theirs, whole, one.place)

    def _stand_for(self, name: str, theirs: Sequence[str], tensors: Mapping[str, Tensor], place: Place) -> None:
        """Let a tensor of the model be the first of several, one behind the other, which had the names `theirs`, and
        may be cut already, all alike."""
        parts = [self.parts.get(one) for one in theirs]
        wholes = [tensors[one].detach() if part is None else part.whole for one, part in zip(theirs, parts)]
        shards = {None if part is None else part.shard for part in parts}
        if len(shards) > 1:
            raise ModelError(
                f"mesh: not every stage has {name.rpartition('.')[2]} cut alike",
                where=self._where,
                expected="one style for the layers at the same place of each stage",
                got=", ".join(theirs),
            )
        (shard,) = shards
        if shard is not None and shard.axis == place.number:
            raise ModelError(
                f"mesh: {name} is within a stage, and is shared out along the axis of the stages",
                where=self._where,
                expected=f"another axis than {place.name} for what is within a stage",
                got=f"a style along {place.name}",
                fix="name an axis tp in the mesh: STYLE@tp",
            )
        self.parts[name] = Part(torch.cat(wholes), place.shard(0) if shard is None else again(place.shard(0), shard))
        self.stages[name] = tuple(theirs)

    def cut_states(self) -> None:
        """Buffers that a model sizes by what its layers make, as caches: its `split_states` says how these are cut."""
        said: Any = getattr(self._model, "split_states", None)
        if said is None:
            return
        with pretended(self._mesh):
            shards = self._said(said)
        for name, shard in shards.items():
            staged, buffer = self.parts.get(name), self._whole.get_buffer(name)
            if staged is None:
                self.parts[name] = Part(buffer.clone(), shard)  # a call of the original writes into its own
            else:
                self.parts[name] = Part(staged.whole, again(staged.shard, shard))
            path, _, own = name.rpartition(".")
            self._model.get_submodule(path)._buffers[own] = part_of(buffer, shard, 0).clone()

    def _said(self, split_states: Any) -> Mapping[str, Shard]:
        """What `split_states` says, which calls the model as a rank has it. Raises ModelError where that fails."""
        try:
            found: Mapping[str, Shard] = split_states(self._within_a_stage())
        except AotairError:
            raise
        except Exception as error:
            text = str(error).strip().partition("\n")[0]
            raise ModelError(
                f"mesh: the model cannot be called as ranks share it out{user_frame(error)}",
                where=self._where,
                expected="a plan under which a rank's layers fit each other",
                got=f"{type(error).__name__}: {text}",
                fix="leave out the axis, or share out by patterns what can be: parallel: {PATTERN: STYLE}",
            ) from error
        return found

    def _within_a_stage(self) -> dict[str, Part]:
        """The parts, as they would be if each stage were the whole model."""
        found = {}
        for name, part in self.parts.items():
            if name not in self.stages:
                found[name] = part
            elif (shard := within(part.shard)) is not None:
                found[name] = Part(part.whole.chunk(part.shard.parts)[0], shard)
        return found


class _Alone:
    """A group of which only one rank is there: results have the right shapes, and no meaning."""

    number = 0

    def __init__(self, size: int):
        self.size = size

    def all_reduce(self, x: Tensor, reduce: str) -> None:
        """As it is."""

    def all_gather(self, out: Tensor, x: Tensor) -> None:
        out.copy_(torch.cat([x] * self.size))

    def reduce_scatter(self, out: Tensor, x: Tensor, reduce: str) -> None:
        out.copy_(x.chunk(self.size)[0])

    def all_to_all(self, out: Tensor, x: Tensor) -> None:
        out.copy_(x)

    def broadcast(self, x: Tensor, root: int) -> None:
        """As it is."""


@contextlib.contextmanager
def pretended(mesh: Sequence[Axis]) -> Iterator[None]:
    """Within, a rank's model can be called alone, for the shapes of what it makes."""
    with groups.named({axis.name: _Alone(axis.size) for axis in mesh}):
        yield
