"""Random small models, for the whole line: views, in-place ops, caches, mixed dtypes and shapes, side streams.

A model is a list of steps, plain data that a recipe can hold: `[op, target, arguments…]`, where a number stands for a
value made so far (modulo their count). A step that does not fit the values it gets is left out, so that every list of
steps is a model.
"""

import random
import tempfile
from pathlib import Path

import torch
from torch import nn

UNARY = ("relu", "neg", "tanh", "sigmoid", "abs", "sin", "clone")
BINARY = ("add", "sub", "mul", "maximum")
VIEWS = ("t", "slice", "select", "expand", "view", "unsqueeze", "diagonal", "permute")
INPLACE = ("add_", "mul_", "relu_", "copy_", "sub_")
CACHES = ("index_copy", "slice_set", "row_set", "index_put", "view_set")
OTHERS = ("cat", "cat1", "softmax", "sum", "matmul", "to", "where")
GROUPS = {"unary": UNARY, "binary": BINARY, "view": VIEWS, "inplace": INPLACE, "cache": CACHES, "other": OTHERS}
DTYPES = (torch.float32, torch.float64, torch.float16, torch.int32)
SHAPE = (4, 6)


class Program(nn.Module):
    """Two inputs and two caches of SHAPE, a state, a parameter, and the steps over them."""

    def __init__(self, steps: list):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.steps = steps
        self.weight = nn.Parameter(torch.rand(SHAPE, generator=generator) - 0.5)
        self.register_buffer("state", torch.rand(SHAPE, generator=generator) - 0.5)

    def forward(self, x, y, cache, other, index):
        values = [x, y, cache, other, self.state, self.weight]
        for op, *numbers in self.steps:
            a, b = (values[number % len(values)] for number in numbers[:2])
            made = step(op, a, b, numbers[2], index, written=(cache, other, self.state), kept=(x, y, self.weight))
            if made is not None:
                values.append(made)
        last = [value for value in values[6:] if value.dtype.is_floating_point][-3:] or [x + 0]
        return tuple(last)


def step(op: str, a, b, number: int, index, written, kept):
    """One step's result, or None where it does not fit. `kept` may not be written, `written` are the caches."""
    if op in UNARY:
        return getattr(torch, op)(a) if a.dtype.is_floating_point else None
    if op in BINARY:
        return getattr(torch, op)(a, b) if _broadcast(a, b) and a.numel() * b.numel() < 4000 else None
    if op in VIEWS:
        return _view(op, a, number)
    if op in INPLACE:
        return _inplace(op, a, b, kept)
    if op in CACHES:
        return _cache(op, written[number % 3], a, index, number)
    return _other(op, a, b, number)


def _broadcast(a, b) -> bool:
    try:
        torch.broadcast_shapes(a.shape, b.shape)
    except RuntimeError:
        return False
    return True


def _view(op: str, a, number: int):
    if a.dim() == 0 or a.dim() > 3 or a.numel() == 0:
        return None
    if op == "t":
        return a.t() if a.dim() == 2 else a.transpose(0, -1)
    if op == "slice":
        dim = number % a.dim()
        return a.narrow(dim, number % a.shape[dim], 1 + (a.shape[dim] - 1 - number % a.shape[dim]) // 2)
    if op == "select":
        return a.select(0, number % a.shape[0]) if a.dim() > 1 else None
    if op == "expand":
        return a[:1].expand(3, *a.shape[1:])
    if op == "view":
        return a.reshape(-1) if a.is_contiguous() else None
    if op == "unsqueeze":
        return a.unsqueeze(number % (a.dim() + 1))
    if op == "diagonal":
        return a.diagonal() if a.dim() == 2 else None
    return a.permute(*reversed(range(a.dim())))


def _inplace(op: str, a, b, kept):
    """In place where eager PyTorch allows it and no input is written that the recipe keeps."""
    if any(_shares(a, value) for value in kept) or not a.dtype.is_floating_point or 0 in a.stride():
        return None
    if op == "relu_":
        return a.relu_()
    if b.numel() > a.numel() or not _broadcast(a, b) or torch.broadcast_shapes(a.shape, b.shape) != a.shape:
        return None
    if op == "copy_" and a.shape != b.shape:
        return None  # torch.export loses the broadcast of a copy into a buffer that is returned
    if _shares(a, b):  # eager reads what it has just written there
        b = b.clone()
    return getattr(a, op)(b)


def _cache(op: str, cache, a, index, number: int):
    if not a.dtype.is_floating_point:
        return None
    row = a.reshape(-1)[:6].clone()
    if row.numel() != 6:
        return None
    row = row.to(cache.dtype)
    if op == "index_copy":
        cache.index_copy_(0, index, row[None])
    elif op == "slice_set":
        cache[number % 3 : number % 3 + 1] = row
    elif op == "row_set":
        cache[number % 4] = row
    elif op == "index_put":
        cache.index_put_((index,), row[None])
    else:
        cache.view(2, 2, 6)[number % 2, :, :] = row
    return cache[number % 4] * 1 if number % 2 else None


def _other(op: str, a, b, number: int):
    if op in ("cat", "cat1"):
        dim = 0 if op == "cat" or a.dim() < 2 else 1
        fits = a.dim() == b.dim() and a.dim() > 0 and a.numel() + b.numel() < 200
        same = fits and all(m == n for axis, (m, n) in enumerate(zip(a.shape, b.shape)) if axis != dim)
        return torch.cat([a, b, a][: 2 + number % 2], dim) if same else None
    if op == "to":
        return a.to(DTYPES[number % len(DTYPES)])
    if not a.dtype.is_floating_point or a.dim() == 0:
        return None
    if op == "softmax":
        return a.softmax(-1)
    if op == "sum":
        return a.sum(number % a.dim(), keepdim=bool(number % 2))
    if op == "matmul":
        fits = a.dim() == b.dim() == 2 and a.shape[1] == b.shape[0] and a.dtype == b.dtype == torch.float32
        return torch.tanh(a @ b) if fits else None
    return torch.where(a > 0, a, torch.zeros((), dtype=a.dtype))


def _shares(a, b) -> bool:
    while a._base is not None:
        a = a._base
    while b._base is not None:
        b = b._base
    return a is b


def random_steps(seed: int) -> list:
    chooser = random.Random(seed)
    groups = chooser.choices(list(GROUPS), weights=(4, 4, 5, 4, 2, 4), k=chooser.randint(4, 18))
    return [[chooser.choice(GROUPS[group]), *(chooser.randrange(64) for _ in range(3))] for group in groups]


def recipe(steps: list, device: str = "cpu", streams: int = 0) -> dict:
    """A recipe for the steps; with `streams`, its nodes are dealt to side streams by that number."""
    mutated = {"shape": list(SHAPE), "dtype": "float32", "mutated": True}
    plain = {"shape": list(SHAPE), "dtype": "float32"}
    found = {
        "name": "fuzz",
        "model": {"factory": f"{__file__}:Program", "kwargs": {"steps": steps}},
        "target": {"device": device},
        "inputs": {
            "x": plain, "y": plain, "cache": mutated, "other": mutated,
            "index": {"shape": [1], "dtype": "int64", "range": [0, 4]},
        },
        "verify": {"atol": 1e-4, "rtol": 1e-3},
    }  # fmt: skip
    if streams:
        found["config"] = {"post_grad_custom_post_pass": dealer(streams)}
    return found


def dealer(seed: int):
    """A pass that opens scopes around random runs of nodes, with no events but a few."""

    def deal(gm, example_inputs, config) -> None:
        chooser, graph, air = random.Random(seed), gm.graph, torch.ops.air
        calls = [node for node in graph.nodes if node.op == "call_function"]
        position = 0
        while position < len(calls):
            length = chooser.randint(1, 4)
            if chooser.random() < 0.5:
                label = f"side_{chooser.randrange(3)}"
                with graph.inserting_before(calls[position]):
                    graph.call_function(air.scope_enter.default, (["_user_stream_label"], [label]))
                with graph.inserting_after(calls[min(position + length, len(calls)) - 1]):
                    graph.call_function(air.scope_exit.default)
            position += length

    return deal


def check(steps: list, device: str = "cpu", streams: int = 0, replays=lambda seed: [None]) -> str:
    """What is wrong with the built program of these steps, or nothing. `replays(seed)` gives contexts to replay in."""
    from aotair.errors import ExportError, UnsupportedError
    from aotair.export.export import export
    from aotair.model.load import load_model
    from aotair.pack import lay_down
    from aotair.passes import pipeline
    from aotair.passes.observer import Observer
    from aotair.program import build_program
    from aotair.prove.prove import prove
    from aotair.recipe.job import job_of
    from aotair.recipe.read import parse_recipe
    from aotair.target.target import Target
    from aotair_runtime.errors import AotairError

    parsed = job_of(parse_recipe(recipe(steps, device, streams)))
    model = load_model(parsed)
    try:
        exported = export(model, parsed.entries[0])
    except (ExportError, UnsupportedError):
        return "refused"
    pipeline.apply(exported.module, parsed.config, Observer(Target(device)))
    before = len(exported.module.graph.nodes)
    config = parsed.config.model_copy(update={"post_grad_custom_post_pass": None})
    again = Observer(Target(device))
    pipeline.apply(exported.module, config, again)
    if sum(record.rewrites for record in again.records) or len(exported.module.graph.nodes) != before:
        return f"a second run changed something: {again.records}"
    built = build_program([exported], parsed, lambda *_: None)
    with tempfile.TemporaryDirectory() as folder:
        try:
            proved = prove(lay_down(built, Path(folder)), model, parsed, lambda *_: None)
        except AotairError as error:
            return str(error)
    return replay(proved, built, device, replays) if device != "cpu" else ""


def replay(proved, built, device: str, replays) -> str:
    """The golden inputs on a device, in every context that `replays` gives."""
    from aotair_runtime.artifact.open import Artifact
    from aotair_runtime.devices import open_device
    from aotair_runtime.model import Model
    from aotair_runtime.settings import Settings
    from aotair_runtime.weights.compared import compare
    from aotair_runtime.weights.golden import take_changed

    constants = tuple(built.weights[constant.name] for constant in built.program.constants)
    golden, names = proved.golden, [spec.name for spec in proved.program.entry_points[0].inputs]
    with Model(Artifact(Path("fuzz"), proved.program, constants), open_device(device), Settings()) as model:
        given = [golden[f"forward.0.in.{name}"].to(model.device) for name in names]
        starts = [tensor.clone() for tensor in given]
        for context in replays(0):
            for tensor, start in zip(given, starts):
                tensor.copy_(start)
            model.reset_state()
            lasting = {f"forward.0.after.{name}": given[names.index(name)] for name in ("cache", "other")}
            lasting |= {f"forward.0.state.{name}": tensor for name, tensor in model.state.items()}
            wanted = [(tensor, take_changed(golden, name, tensor)) for name, tensor in lasting.items()]
            with context:
                outputs = [output.cpu() for output in model.forward.flat(given)]
            pairs = [(output, golden[f"forward.0.out.{n}"]) for n, output in enumerate(outputs)]
            pairs += [(tensor.cpu(), want) for tensor, want in wanted]
            wrong = [number for number, (got, want) in enumerate(pairs) if not compare(got, want, 1e-4, 1e-3)[1]]
            if wrong:
                return f"wrong on {device}: {wrong}"
    return ""
