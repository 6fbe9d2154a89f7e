"""Faults as a builder might make them, planted in graphs and weights of models that are right: a proof has to see each.

A model is exported once. Each fault changes a copy of its graphs, or of some weights, and what is then built is proved
against the model as it is.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from cases import RECIPES, ROOT
from torch.fx import GraphModule, Node

from aotair.export.export import export
from aotair.export.exported import Exported
from aotair.export.identity import unified
from aotair.graph.fake import recompute
from aotair.model.load import load_model
from aotair.pack import lay_down
from aotair.program import build_program
from aotair.prove.prove import Proved, prove
from aotair.recipe.job import Job, job_of
from aotair.recipe.read import parse_recipe, read_recipe

aten = torch.ops.aten
_LANGUAGE = (
    "model.kwargs.layers=2",
    "entry_points.prefill.buckets={batch: [2], seq: [8]}",
    "entry_points.decode.buckets={batch: [2]}",
)
_CHANGES = {
    "minilm": ("buckets={batch: [2], seq: [8]}", "verify={}"),
    **dict.fromkeys(("llama", "qwen3", "deepseek_v3"), _LANGUAGE),
}


class Model:
    """A model with its graphs; `planted` proves what a fault makes of them."""

    def __init__(self, name: str):
        if name in _CHANGES:
            recipe = read_recipe(ROOT / "recipes" / f"{name}.yaml", _CHANGES[name])
        else:
            recipe = parse_recipe(RECIPES[name])
        self.job: Job = job_of(recipe)
        self.original = load_model(self.job)
        found = [export(self.original, one) for one in self.job.entries]
        self.exported = unified(found, [graph.entry for graph in found])

    def proved(self, folder: Path, plant: "Callable[[Copy], None]") -> Proved:
        """Raises ProofError, as it should where something is planted."""
        made = Copy(self.exported)
        plant(made)
        for graph in made.modules:
            recompute(graph.graph)
        folder.mkdir()
        built = build_program(made.exported(), self.job, lambda *_: None)
        return prove(lay_down(built, folder), self.original, self.job, lambda *_: None)


class Copy:
    """Graphs to change, and weights by the end of their names."""

    def __init__(self, exported: list[Exported]):
        self._exported = exported
        self.modules: list[GraphModule] = [copy.deepcopy(one.module) for one in exported]
        self._weights: dict[str, torch.Tensor] = {}

    def exported(self) -> list[Exported]:
        return [
            replace(one, module=module, constants={name: self._constant(item) for name, item in one.constants.items()})
            for one, module in zip(self._exported, self.modules)
        ]

    def _constant(self, item):
        return replace(item, tensor=self._weights.get(item.name, item.tensor))

    def weight(self, end: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Change the weight whose name ends so; the only one, or the first in the order of names."""
        names = {item.name: item.tensor for one in self._exported for item in one.constants.values()}
        name = min(name for name in names if name.endswith(end))
        before = names[name]
        self._weights[name] = change(before.clone()).contiguous()
        assert not torch.equal(self._weights[name], before), "the fault is none"

    def nodes(self, op, graph: int | None = None) -> Iterator[Node]:
        """The calls of an op, in the graph of that number or in all; the graphs may be changed meanwhile."""
        for number, module in enumerate(self.modules):
            if graph in (None, number):
                yield from list(module.graph.find_nodes(op="call_function", target=op))

    def one(self, op, place: int = 0, graph: int = -1) -> Node:
        return list(self.nodes(op, graph % len(self.modules)))[place]


def after(node: Node, op, *args) -> Node:
    """A call that all who read `node` read instead; `node` itself among its arguments is what it is."""
    with node.graph.inserting_after(node):
        made = node.graph.call_function(op, args)
    node.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)
    return made


def argument(node: Node, place: int, value: object) -> None:
    node.args = (*node.args[:place], value, *node.args[place + 1 :])


# ---- weights -----------------------------------------------------------------------------------------------------


def rounded(end: str):
    """A weight in bfloat16."""
    return lambda made: made.weight(end, lambda weight: weight.bfloat16().float())


def swapped_heads(end: str, width: int):
    def swap(weight: torch.Tensor) -> torch.Tensor:
        return torch.cat([weight[width : 2 * width], weight[:width], weight[2 * width :]])

    return lambda made: made.weight(end, swap)


def zeroed(end: str, *places: int):
    """A weight, or a part of it, that is left out."""

    def zero(weight: torch.Tensor) -> torch.Tensor:
        weight[places or ...] = 0
        return weight

    return lambda made: made.weight(end, zero)


def scaled(end: str, factor: float):
    return lambda made: made.weight(end, lambda weight: weight * factor)


def rolled(end: str):
    """Rows one place on: positions off by one."""
    return lambda made: made.weight(end, lambda weight: weight.roll(1, 0))


# ---- graphs ------------------------------------------------------------------------------------------------------


def without_bias(made: Copy) -> None:
    node = next(node for node in made.nodes(aten.linear.default) if len(node.args) == 3)
    node.args = node.args[:2]


def another_eps(made: Copy) -> None:
    for node in made.nodes(aten.layer_norm.default):
        argument(node, 4, 1e-5 if node.args[4] < 1e-5 else 1e-4)
    for node in made.nodes(aten.add.Tensor):
        if node.args[1] == 1e-6:
            argument(node, 1, 1e-5)


def another_activation(made: Copy) -> None:
    """GELU by tanh instead of erf, or instead of SiLU."""
    found = [*made.nodes(aten.gelu.default), *made.nodes(aten.silu.default)][0]
    found.target, found.kwargs = aten.gelu.default, {"approximate": "tanh"}


def without_residual(made: Copy) -> None:
    """What a layer adds to what came, alone."""
    last = made.one(aten.linear.default, -1)
    while not (added := [user for user in last.users if user.target is aten.add.Tensor]):
        last = next(iter(last.users))
    added[0].replace_all_uses_with(last)


def another_scale(made: Copy) -> None:
    """Attention over one number more."""
    node = made.one(aten.scaled_dot_product_attention.default)
    width = node.args[0].meta["val"].shape[-1]
    node.kwargs = {**node.kwargs, "scale": (int(width) + 1) ** -0.5}


def one_padded_token(made: Copy) -> None:
    """A mask that lets the first hidden token of each row through."""
    for op in (aten._to_copy.default, aten.gt.Scalar):
        masks = [node for node in made.nodes(op, 0) if node.meta["val"].dtype is torch.bool]
        if masks:
            break
    mask = masks[0]
    graph = mask.graph
    with graph.inserting_after(mask):
        hidden = graph.call_function(aten.bitwise_not.default, (mask,))
    with graph.inserting_after(hidden):
        count = graph.call_function(aten.cumsum.default, (hidden, 1))
    with graph.inserting_after(count):
        first = graph.call_function(aten.eq.Scalar, (count, 1))
    with graph.inserting_after(first):
        both = graph.call_function(aten.bitwise_and.Tensor, (first, hidden))
    with graph.inserting_after(both):
        seen = graph.call_function(aten.bitwise_or.Tensor, (mask, both))
    mask.replace_all_uses_with(seen, delete_user_cb=lambda user: user not in (hidden, seen))


def later_positions(made: Copy) -> None:
    """The rotary embedding of the next position."""
    node = next(n for n in made.nodes(aten._to_copy.default) if n.meta["val"].dtype is torch.float32)
    after(node, aten.add.Tensor, node, 1)


def one_stale_row(made: Copy) -> None:
    """A step attends to the row after its own, which nobody has written."""
    _other_than_itself(made, 1)


def without_its_own_row(made: Copy) -> None:
    made.one(aten.le.Tensor).target = aten.lt.Tensor
    _other_than_itself(made, 1 << 20)


def _other_than_itself(made: Copy, steps: int) -> None:
    """What a token sees whatever else is masked is a row so many steps after its own, where there is such a row."""
    node = made.one(aten.eq.Tensor)
    with node.graph.inserting_before(node):
        later = node.graph.call_function(aten.add.Tensor, (node.args[0], steps))
    argument(node, 0, later)


def row_written_twice(made: Copy) -> None:
    """A new row of the cache also lies where the one before it was."""
    node = made.one(aten.index_copy.default, 1)
    last = next(user for user in node.users if user.target is aten.copy_.default)
    with node.graph.inserting_before(last):
        before = node.graph.call_function(aten.sub.Tensor, (node.args[2], 1))
        places = node.graph.call_function(aten.clamp.default, (before, 0))
        again = node.graph.call_function(aten.index_copy.default, (node, 0, places, node.args[3]))
    argument(last, 1, again)


def row_not_written(made: Copy) -> None:
    """A cache that stays as it was, for whoever reads it next."""
    copied = made.one(aten.copy_.default)
    copied.graph.erase_node(copied)


def caches_swapped(made: Copy) -> None:
    """Keys and values of two layers change places."""
    first, last = made.one(aten.copy_.default, 0), made.one(aten.copy_.default, 2)
    written = first.args[1], last.args[1]
    argument(first, 1, written[1])
    argument(last, 1, written[0])


def shorter_rows(made: Copy) -> None:
    """Sequences of the cache lie one row too near."""
    node = next(node for node in made.nodes(aten.mul.Tensor, 1) if node.args[1] == 128)
    argument(node, 1, 127)


def in_bfloat16(made: Copy) -> None:
    """One product of activations that were rounded."""
    node = list(made.nodes(aten.linear.default))[2]
    with node.graph.inserting_before(node):
        half = node.graph.call_function(aten._to_copy.default, (node.args[0],), {"dtype": torch.bfloat16})
        back = node.graph.call_function(aten._to_copy.default, (half,), {"dtype": torch.float32})
    argument(node, 0, back)


def token_before_the_last(made: Copy) -> None:
    node = next(node for node in made.nodes(aten.slice.Tensor, 0) if tuple(node.args[1:3]) == (1, -1))
    node.args = (node.args[0], 1, -2, -1)


def padding_in_the_mean(made: Copy) -> None:
    """A sum over all places, padding among them."""
    product = made.one(aten.mul.Tensor, -1)
    product.replace_all_uses_with(product.args[0])


def another_expert_scale(made: Copy) -> None:
    node = next(node for node in made.nodes(aten.mul.Tensor) if node.args[1] == 2.5)
    argument(node, 1, 2.501)


def greedier_routing(made: Copy) -> None:
    """The bias of the router among the weights of the experts, not among their choice alone."""
    node = made.one(aten.gather.default)
    with node.graph.inserting_before(node):
        more = node.graph.call_function(aten.add.Tensor, (node.args[0], 0.125))
    argument(node, 0, more)


@dataclass(frozen=True)
class Fault:
    """`often`: it is among those that are tried at each run of the tests."""

    model: str
    what: str
    plant: Callable[[Copy], None]
    often: bool = False

    def __str__(self) -> str:
        return f"{self.model}: {self.what}"


_LANGUAGES = ("llama", "qwen3", "deepseek_v3")
FAULTS = [
    Fault("minilm", "a bias dropped", without_bias, True),
    Fault("minilm", "another eps", another_eps, True),
    Fault("minilm", "heads swapped", swapped_heads("layer.0.attention.self.query.weight", 32), True),
    Fault("minilm", "positions off by one", rolled("position_embeddings.weight"), True),
    Fault("minilm", "a padded token is seen", one_padded_token, True),
    Fault("minilm", "a weight in bfloat16", rounded("layer.5.intermediate.dense.weight"), True),
    Fault("minilm", "biases in bfloat16", rounded("layer.0.attention.output.dense.bias")),
    Fault("minilm", "words in bfloat16", rounded("word_embeddings.weight")),
    Fault("minilm", "activations in bfloat16", in_bfloat16),
    Fault("minilm", "another activation", another_activation),
    Fault("minilm", "a residual sum left out", without_residual),
    Fault("minilm", "another scale of attention", another_scale),
    Fault("minilm", "padding in the mean", padding_in_the_mean),
    Fault("encoder", "a bias dropped", without_bias, True),
    Fault("encoder", "another eps", another_eps),
    Fault("encoder", "a padded token is seen", one_padded_token),
    Fault("encoder", "a weight in bfloat16", rounded("up.weight")),
    Fault("encoder", "heads swapped", swapped_heads("qkv.weight", 8)),
    Fault("counter", "a state that is not written", row_not_written, True),
    *(
        Fault(model, what, plant, model == "llama" and often)
        for model in _LANGUAGES
        for what, plant, often in (
            ("another eps", another_eps, True),
            ("a padded token is seen", one_padded_token, True),
            ("positions off by one", later_positions, True),
            ("a stale row is seen", one_stale_row, True),
            ("its own row is not seen", without_its_own_row, False),
            ("a row written twice", row_written_twice, True),
            ("a row not written", row_not_written, False),
            ("caches swapped", caches_swapped, False),
            ("rows too near", shorter_rows, False),
            ("a weight in bfloat16", rounded("layers.1.self_attn.o_proj.weight"), True),
            ("words in bfloat16", rounded("embed_tokens.weight"), False),
            ("activations in bfloat16", in_bfloat16, False),
            ("another activation", another_activation, False),
            ("another scale of attention", another_scale, False),
            ("another rotary base", scaled("inv_freq", 1.0001), False),
            ("one word's logit left out", zeroed("lm_head.weight", 17), False),
            ("a norm's weight off", scaled("model.norm.weight", 1.0001), False),
            ("the token before the last", token_before_the_last, False),
        )
    ),
    *(
        Fault(model, "heads swapped", swapped_heads("layers.0.self_attn.q_proj.weight", 32), model == "llama")
        for model in ("llama", "qwen3")
    ),
    Fault("deepseek_v3", "one expert left out", zeroed("experts.down_proj", 3)),
    Fault("deepseek_v3", "experts scaled otherwise", another_expert_scale),
    Fault("deepseek_v3", "routing weighs otherwise", greedier_routing),
    Fault("deepseek_v3", "shared experts in bfloat16", rounded("shared_experts.down_proj.weight")),
]
