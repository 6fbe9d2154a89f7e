"""From planned buckets to plain data: instructions, tensors and arguments, each stored once."""

import importlib
from dataclasses import dataclass

import pytest
import torch
from graphs import trace

from aotair.emit.emitter import Table, Tables, _Emitter, _fill_value, emit
from aotair.errors import InternalError, UnsupportedError
from aotair.graph.streams import RECORD, WAIT
from aotair.lower import slices
from aotair.lower.graph_builder import GraphBuilder
from aotair.lower.select import select
from aotair.plan.lifetimes import lifetimes
from aotair.plan.search.arena import plan_arena
from aotair.target.target import Target
from aotair_runtime.artifact.open import read_program
from aotair_runtime.format.schema import (
    Bucket,
    DeviceArg,
    DTypeArg,
    Form,
    Fresh,
    HostArg,
    Instruction,
    Layout,
    LayoutArg,
    MemoryFormatArg,
    Space,
    TensorArg,
    WorkspaceArg,
)


def test_buckets_share_instructions(built):
    program = read_program(built("encoder"))
    (entry,) = program.entry_points
    run = sum(len(bucket.code) for bucket in entry.buckets)
    assert len(program.instructions) < run / 2


def test_the_plan_holds_in_the_program_too(built):
    """No two tensors of the arena that are alive at once share a byte, told from the program alone."""
    for name in ("encoder", "views", "structured"):
        program = read_program(built(name))
        for bucket in program.entry_points[0].buckets:
            _check_no_live_byte_is_written(program, bucket)


def _check_no_live_byte_is_written(program, bucket) -> None:
    """Replay the program on a map of bytes: each read must find what the last write of that tensor's bytes left."""
    from aotair_runtime.format.schema import Form, TensorArg
    from aotair_runtime.format.torch_names import dtype

    owner: dict[int, object] = {}

    def span(number: int) -> set[int]:
        tensor = bucket.tensors[number]
        if tensor.space != Space.ARENA:
            return set()
        layout = program.layouts[tensor.layout]
        width = dtype(layout.dtype).itemsize
        meta = torch.empty_strided(layout.shape, layout.strides, device="meta")
        index = torch.arange(meta.untyped_storage().nbytes() // 4).as_strided(layout.shape, layout.strides).flatten()
        return {tensor.offset + int(i) * width + k for i in index.tolist() for k in range(width)}

    def flat(values):
        for value in values:
            if isinstance(value, tuple):
                yield from flat(value)
            elif isinstance(value, TensorArg):
                yield value.index

    for number in bucket.inputs:
        owner |= dict.fromkeys(span(number), "input")
    for step, code in enumerate(bucket.code):
        instruction = program.instructions[code]
        args = list(flat((*instruction.args, *(v for _, v in instruction.kwargs))))
        writes = list(instruction.outs) if instruction.form != Form.EFFECT else args[:1]
        reads = args if instruction.form != Form.EFFECT else args[1:]
        written = set().union(*(span(n) for n in writes if n >= 0)) if writes else set()
        for number in reads:
            bytes_read = span(number)
            assert all(byte in owner for byte in bytes_read), f"{instruction.node} reads what nobody wrote"
            if instruction.form != Form.EFFECT:
                assert not bytes_read & written, f"{instruction.node} overwrites its own input"
        owner |= dict.fromkeys(written, step)
    for number in bucket.outputs:
        assert all(byte in owner for byte in span(number))


# ---- a bucket alone, run by a few lines of Python --------------------------------------------------------------------

aten = torch.ops.aten
NAMES = {Space.CONSTANT: "weight", Space.STATE: "state"}


@dataclass(frozen=True)
class Emitted:
    bucket: Bucket
    tables: Tables

    @property
    def code(self) -> list[Instruction]:
        return [self.tables.instructions.values()[number] for number in self.bucket.code]

    def ops(self) -> list[str]:
        return [self.tables.ops.values()[i.op].name if i.op >= 0 else Form(i.form).name for i in self.code]

    def layout(self, number: int) -> Layout:
        return self.tables.layouts.values()[self.bucket.tensors[number].layout]


def emitted(module, spaces=None, target: str = "cpu", tables: Tables | None = None, hosts=()) -> Emitted:
    """A graph's bucket; what `spaces` does not name is a user input."""
    graph, tables = module.graph, tables or Tables()
    names = [node.name for node in graph.find_nodes(op="placeholder")]
    places = dict.fromkeys(names, Space.INPUT) | (spaces or {})
    kernels = select(graph, Target(target))
    lives = lifetimes(graph, places, kernels)
    plan = plan_arena(lives.intervals, 64, 0.1)
    stored = {name: f"{NAMES[space]} {name}" for name, space in places.items() if space in NAMES}
    inputs = [name for name, space in places.items() if space not in NAMES]
    return Emitted(emit(graph, lives, plan, tables, stored, inputs, (4,), kernels, hosts), tables)


def replayed(item: Emitted, inputs: list[torch.Tensor], stored: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """What the bucket answers: inputs are copied into an arena full of rubbish, then instruction by instruction."""
    bucket, tables = item.bucket, item.tables
    arena = torch.full((bucket.height + 64,), 0xA5, dtype=torch.uint8)
    stores = {Space.CONSTANT: tables.constants.values(), Space.STATE: tables.states.values()}

    def memory(place) -> torch.Tensor:
        if place.space == Space.ARENA:
            return arena
        if place.space == Space.CALLER:
            return inputs[place.index].untyped_storage()
        if place.space == Space.INPUT:
            return arena[bucket.input_offsets[place.index] :]
        return stored[stores[place.space][place.index]].untyped_storage()

    def tensor(number: int) -> torch.Tensor:
        place, layout = bucket.tensors[number], item.layout(number)
        bytes_ = memory(place)
        if isinstance(bytes_, torch.UntypedStorage):
            bytes_ = torch.empty(0, dtype=torch.uint8).set_(bytes_)
        kind = getattr(torch, layout.dtype)
        from_ = bytes_[place.offset :]
        whole = from_[: len(from_) // kind.itemsize * kind.itemsize].view(kind)
        return whole.as_strided(layout.shape, layout.strides)

    def value(arg):
        if isinstance(arg, TensorArg):
            return tensor(arg.index)
        if isinstance(arg, tuple):
            return [value(one) for one in arg]
        if isinstance(arg, (DTypeArg, MemoryFormatArg, LayoutArg)):
            return getattr(torch, arg.name)
        return torch.device("cpu") if isinstance(arg, DeviceArg) else arg

    for number, given in zip(bucket.inputs, inputs):
        if bucket.tensors[number].space == Space.INPUT:
            tensor(number).copy_(given)
    for instruction in item.code:
        if instruction.form in (Form.RECORD, Form.WAIT):
            continue
        namespace, _, name = tables.ops.values()[instruction.op].name.partition("::")
        packet, _, overload = name.partition(".")
        op = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
        args, kwargs = map(value, instruction.args), {key: value(arg) for key, arg in instruction.kwargs}
        outs = [tensor(number) if number >= 0 else None for number in instruction.outs]
        if instruction.form == Form.OUT:
            kwargs |= zip([a.name for a in op._schema.arguments if a.is_out], outs)
        results = op(*args, **kwargs)
        if instruction.form == Form.COPY:
            for place, result in zip(outs, results if isinstance(results, (tuple, list)) else [results], strict=True):
                if place is not None:
                    place.copy_(result)
    return [tensor(number).clone() for number in bucket.outputs]


def same(function, *inputs: torch.Tensor, spaces=None, target: str = "cpu", change=None) -> Emitted:
    """The bucket of a function, after checking that it answers as the function does and changes what that changes."""
    module = trace(function, *inputs)
    module.graph.eliminate_dead_code()
    if change is not None:
        change({node.name: node for node in module.graph.nodes}, module.graph)
    item = emitted(module, spaces, target)
    names = [node.name for node in module.graph.find_nodes(op="placeholder")]
    mine, theirs = ([tensor.clone() for tensor in inputs] for _ in range(2))
    stored = {
        f"{NAMES[space]} {name}": mine[names.index(name)] for name, space in (spaces or {}).items() if space in NAMES
    }
    given = [tensor for name, tensor in zip(names, mine) if (spaces or {}).get(name) not in NAMES]
    got, want = replayed(item, given, stored), function(*theirs)
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one, other) and one.dtype == other.dtype
    for one, other in zip(mine, theirs):
        assert torch.equal(one, other), "what is written into inputs and states"
    return item


X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def test_each_way_of_a_kernel_has_its_form():
    def function(x):
        total = (x + 1).clone()  # OUT, then a copy into place
        total.mul_(2)  # an effect
        full = torch.full_like(x, 3)  # a fill
        return (total, full, torch.nn.functional.pad(x, (1, 1)).flip(0))

    item = same(function, X)
    forms = dict(zip(item.ops(), (Form(i.form) for i in item.code)))
    assert forms["aten::add.out"] == Form.OUT and forms["aten::mul_.Tensor"] == Form.EFFECT
    assert forms["aten::copy_"] == forms["aten::fill_.Scalar"] == Form.EFFECT
    assert "aten::clone" not in forms and "aten::full_like" not in forms


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.exp(), x.exp().t().contiguous()),
        lambda x: (x.t(), x[1:], x + 1),
        lambda x: tuple(x.topk(2)),
        lambda x: (x.topk(2)[1],),
        lambda x: (torch.cat([x, x * 2], 1), torch.stack([x, x])),
        lambda x: (x.sum(0), x.sum(), x.amax(1, keepdim=True)),
        lambda x: (torch.where(x > 0, x, 0.0), (x > 0) & (x < 1)),
        lambda x: (torch.arange(5) + 1, torch.zeros(2, 3, dtype=torch.float16)),
        lambda x: (x.new_full([3], 2), torch.ones(2), torch.scalar_tensor(7.5), x.new_zeros(1)),
        lambda x: (x[:0] + 1, x[:, :0].sum(1)),
        lambda x: (x.to(torch.float64), x.to(torch.int32), x.to(torch.bfloat16).float()),
        lambda x: (x.clone(memory_format=torch.contiguous_format), x.t().clone()),
        lambda x: (torch.ops.aten.native_layer_norm(x, [6], None, None, 1e-5)[0],),
        lambda x: (x.view(2, 2, 6).transpose(0, 1)[1] * 3,),
        lambda x: (x.split([1, 3])[1] + 1, x.unbind(0)[2]),
        lambda x: (x,),
        lambda x: (torch.empty_like(x).fill_(2.5),),
    ],
)
@pytest.mark.parametrize("contiguous", [True, False])
def test_a_bucket_answers_as_the_function_does(function, contiguous):
    x = X if contiguous else X.t().contiguous().t()
    given = x.clone() if contiguous else x
    module = trace(function, given.contiguous())
    module.graph.eliminate_dead_code()
    got = replayed(emitted(module), [given], {})
    for one, other in zip(got, function(given.contiguous()), strict=True):
        assert torch.equal(one, other) and one.dtype == other.dtype


@pytest.mark.parametrize("space", [Space.CONSTANT, Space.STATE])
def test_what_is_stored_goes_by_its_name(space):
    item = same(lambda x, w: (x + w, w[1:] * 2), X, X.clone() * 3, spaces={"w_1": space})
    table = item.tables.constants if space == Space.CONSTANT else item.tables.states
    assert table.values() == [f"{NAMES[space]} w_1"]
    (part,) = (p for n, p in enumerate(item.bucket.tensors) if p.space == space and item.layout(n).shape == (3, 6))
    assert (part.index, part.offset) == (0, 24)


def test_what_the_caller_lends_is_written_where_it_is():
    def function(x, cache):
        cache.copy_(x * 2)
        cache[1:2].add_(cache[:1])
        return (cache + 1,)

    item = same(function, X, X.clone(), spaces={"cache_1": Space.CALLER})
    assert item.bucket.input_offsets[0] >= 0 and item.bucket.input_offsets[1] == -1


def test_a_state_is_written_where_it_is():
    def function(x, count):
        count.add_(1)
        return (x * count,)

    same(function, X, torch.ones(1), spaces={"count_1": Space.STATE})


def test_results_that_nobody_wants_have_no_place():
    item = same(lambda x: (x.max(1)[0],), X)
    (instruction,) = item.code
    assert instruction.form == Form.OUT and -1 not in instruction.outs, "an out variant writes both"
    module = trace(lambda x: (torch.native_layer_norm(x, (6,), None, None, 1e-5)[0],), X)
    module.graph.eliminate_dead_code()
    (instruction,) = emitted(module, target="npu").code
    assert instruction.form == Form.COPY and instruction.outs[1:] == (-1, -1)


def test_an_effect_that_returns_more_is_copied_where_it_is_new():
    library = torch.library.Library("aotairemit", "FRAGMENT")
    library.define("bump(Tensor(a!) x) -> (Tensor(a!), Tensor)")
    library.impl("bump", lambda x: (x.add_(1), x * 2), "CPU")
    library.impl("bump", lambda x: (x, torch.empty_like(x)), "Meta")
    item = same(lambda x: (torch.ops.aotairemit.bump(x)[1],), X, spaces={"x_1": Space.CALLER})
    (instruction,) = item.code
    assert instruction.form == Form.COPY and instruction.outs[0] == -1 and instruction.outs[1] >= 0
    assert item.bucket.fresh == (Fresh(instruction.op, 0, 96, 1),), "what it writes into is not fresh"


# ---- slices ----------------------------------------------------------------------------------------------------------


def norm_of(rows: int, target: str = "cpu") -> Emitted:
    build = GraphBuilder()
    x = build.placeholder("x", (rows, 6), (6, 1), torch.float32)
    w = build.placeholder("w", (6,), (1,), torch.float32)
    done = build.call(aten.layer_norm.default, build.call(aten.neg.default, x), [6], w)
    build.graph.output((done,))
    return emitted(torch.fx.GraphModule({}, build.graph), {"w": Space.CONSTANT}, target)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_call_in_slices_writes_all_rows(rows, monkeypatch):
    monkeypatch.setattr(slices, "LIMIT", 2 * 6 * 4)
    item, x, w = norm_of(rows), X.repeat(2, 1)[:rows].contiguous(), torch.arange(6.0)
    norms = [i for i in item.code if item.tables.ops.values()[i.op].name == "aten::layer_norm"]
    assert len(norms) == -(-rows // 2)
    want = torch.nn.functional.layer_norm(-x, [6], w)
    (got,) = replayed(item, [x], {"weight w": w})
    torch.testing.assert_close(got, want)
    assert item.bucket.fresh == (Fresh(norms[0].op, 0, min(rows, 2) * 24, len(norms)),)


def test_slices_share_the_memory_of_the_whole(monkeypatch):
    monkeypatch.setattr(slices, "LIMIT", 6 * 4)
    item = norm_of(3)
    norms = [i for i in item.code if item.tables.ops.values()[i.op].name == "aten::layer_norm"]
    offsets = [item.bucket.tensors[i.outs[0]].offset for i in norms]
    assert [offset - offsets[0] for offset in offsets] == [0, 24, 48]
    assert {i.args[2] for i in norms} == {norms[0].args[2]}, "the weight stays whole"


# ---- tables ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [(1, 1.0, True), (0, False, -0.0), ("1", 1), ((), "()"), (None, "None")])
def test_what_python_takes_for_equal_is_told_apart(values):
    table = Table()
    assert [table.number(value) for value in values] == list(range(len(values)))
    assert [table.number(value) for value in values] == list(range(len(values)))
    assert list(map(repr, table.values())) == list(map(repr, values))


def test_equal_instructions_layouts_and_ops_are_stored_once():
    def function(x):
        return (x + 1, x + 1, x + True)

    item = same(function, X)
    assert len(item.tables.ops.values()) == 1 and len(item.tables.layouts.values()) == 1
    assert len(set(item.bucket.code)) == 3, "each writes elsewhere"


def test_buckets_share_what_is_equal():
    tables = Tables()
    small, large = (emitted(trace(lambda x: ((x + 1) * 2,), torch.zeros(n, 3)), tables=tables) for n in (2, 2))
    assert small.bucket.code == large.bucket.code and len(tables.instructions.values()) == 2


# ---- streams and events ----------------------------------------------------------------------------------------------


def test_events_and_streams_are_counted():
    def change(nodes, graph):
        with graph.inserting_before(nodes["mul"]):
            record = graph.call_function(RECORD, ("a",))
            wait = graph.call_function(WAIT, ("a",))
        record.meta |= {"event": 1, "stream": 0, "val": None}
        wait.meta |= {"event": 1, "stream": 2, "val": None}
        nodes["mul"].meta["stream"] = 2
        graph.output_node().meta |= {"streams": 3, "priorities": (0, 0, -1)}

    item = same(lambda x: ((x + 1) * 2,), X, change=change)
    assert (item.bucket.streams, item.bucket.events, item.bucket.priorities) == (3, 2, (0, 0, -1))
    assert [(Form(i.form).name, i.op, i.args, i.stream) for i in item.code[1:3]] == [
        ("RECORD", -1, (1,), 0),
        ("WAIT", -1, (1,), 2),
    ]
    assert [i.stream for i in item.code] == [0, 0, 2, 2]


def test_priorities_that_are_all_equal_are_not_said():
    def change(nodes, graph):
        graph.output_node().meta |= {"streams": 2, "priorities": (0, 0)}

    assert same(lambda x: (x + 1,), X, change=change).bucket.priorities == ()


def test_what_calls_allocate_is_counted_by_op_and_stream():
    build = GraphBuilder()
    x = build.placeholder("x", (4, 6), (6, 1), torch.float32)
    whole = build.call(aten.layer_norm.default, x, [6])
    part = build.call(aten.layer_norm.default, build.call(aten.slice.Tensor, x, 0, 0, 2), [6])
    build.stream = 1
    beside = build.call(aten.layer_norm.default, x, [6])
    build.graph.output((part, whole, beside))
    item = emitted(torch.fx.GraphModule({}, build.graph))
    assert item.bucket.fresh == (Fresh(0, 0, 96, 2), Fresh(0, 1, 96, 1)), "the most that one call takes"


# ---- arguments -------------------------------------------------------------------------------------------------------


def test_arguments_are_plain_data():
    build = GraphBuilder()
    x = build.placeholder("x", (4, 6), (6, 1), torch.float32)
    made = build.call(
        aten.randn_like.default,
        x,
        dtype=torch.float64,
        layout=torch.strided,
        device=torch.device("cpu"),
        memory_format=torch.preserve_format,
        pin_memory=False,
    )
    build.graph.output((build.call(aten.cat.default, [made, made], 1),))
    item = emitted(torch.fx.GraphModule({}, build.graph))
    kwargs = dict(item.code[0].kwargs)
    kept = {
        "dtype": DTypeArg("float64"),
        "layout": LayoutArg("strided"),
        "device": DeviceArg(),
        "pin_memory": False,
        "memory_format": MemoryFormatArg("preserve_format"),
    }
    assert kwargs == {key: arg for key, arg in kept.items() if key in kwargs} and "memory_format" in kwargs
    assert isinstance(item.code[1].args[0], tuple) and item.code[1].args[0][0] == item.code[1].args[0][1]


def test_an_argument_of_another_type_is_refused():
    build = GraphBuilder()
    x = build.placeholder("x", (4, 6), (6, 1), torch.float32)
    node = build.call(aten.exp.default, x)
    build.graph.output((node,))
    kernels = select(build.graph, Target("cpu"))
    lives = lifetimes(build.graph, {"x": Space.INPUT}, kernels)
    emitter = _Emitter(build.graph, lives, plan_arena(lives.intervals, 64), Tables(), {}, ["x"], kernels, [])
    assert emitter._arg([None, 2, 2.5, True, "text", (x,)])[:5] == (None, 2, 2.5, True, "text")
    with pytest.raises(UnsupportedError, match="an argument of the type complex cannot be stored"):
        emitter._arg(2j)


def test_what_is_no_tensor_or_has_no_memory_is_not_read():
    module = trace(lambda x: (x + 1,), X)
    nodes = {node.name: node for node in module.graph.nodes}
    kernels = select(module.graph, Target("cpu"))
    lives = lifetimes(module.graph, {"x_1": Space.INPUT}, kernels)
    emitter = _Emitter(module.graph, lives, plan_arena(lives.intervals, 64), Tables(), {}, ["x_1"], kernels, [])
    nodes["add"].meta |= {"val": 7, "stack_trace": '  File "/somewhere/model.py", line 7, in forward\n    text\n'}
    with pytest.raises(UnsupportedError, match=r"add is used as a tensor but is a int \(model.py:7, in forward\)"):
        emitter._tensor(nodes["add"])
    with module.graph.inserting_before(module.graph.output_node()):
        stray = module.graph.call_function(aten.neg.default, (nodes["x_1"],))
    stray.meta["val"] = nodes["x_1"].meta["val"]
    with pytest.raises(InternalError, match="is read, and has no memory"):
        emitter._tensor(stray)


@pytest.mark.parametrize(
    ("op", "args", "kwargs", "value"),
    [
        (aten.ones.default, ([2],), {}, 1),
        (aten.zeros_like.default, (), {}, 0),
        (aten.full.default, ([2], 2.5), {}, 2.5),
        (aten.full.default, ([2],), {"fill_value": True}, True),
        (aten.scalar_tensor.default, (3,), {}, 3),
    ],
)
def test_a_fill_has_its_value_from_the_table_or_from_an_argument(op, args, kwargs, value):
    graph = torch.fx.Graph()
    found = _fill_value(graph.call_function(op, args, kwargs))
    assert found == value and type(found) is type(value)


def test_a_fill_with_what_is_no_number_is_refused():
    graph = torch.fx.Graph()
    with pytest.raises(UnsupportedError, match=r"aten\.full\.default fills with a complex, which cannot be stored"):
        _fill_value(graph.call_function(aten.full.default, ([2], 2j)))


# ---- lengths that are lists of the host ------------------------------------------------------------------------------


def attention(x, lengths):
    ops = torch.ops.air.fused_infer_attention_score
    return (ops(x, x, x, num_heads=2, actual_seq_lengths_kv_tensor=lengths)[0],)


def test_lengths_are_host_arguments_of_the_inputs_number():
    importlib.import_module("aotair.ops.npu")
    module = trace(attention, torch.zeros(2, 1, 16), torch.tensor([1, 1]))
    module.graph.eliminate_dead_code()
    item = emitted(module, target="npu", hosts=["lengths_1"])
    (instruction,) = item.code
    kwargs = dict(instruction.kwargs)
    assert kwargs["actual_seq_lengths_kv"] == HostArg(1) and kwargs["num_heads"] == 2
    assert isinstance(kwargs["workspace"], WorkspaceArg) and not any(name.endswith("_tensor") for name in kwargs)
    assert item.tables.ops.values()[kwargs["workspace"].op].name.endswith("get_max_workspace")
    assert (instruction.form, item.bucket.updated) == (Form.OUT, 1)


def test_lengths_that_are_no_host_input_are_refused():
    importlib.import_module("aotair.ops.npu")
    module = trace(attention, torch.zeros(2, 1, 16), torch.tensor([1, 1]))
    with pytest.raises(UnsupportedError, match=r"lengths of air\.fused_infer_attention_score.* are no host input"):
        emitted(module, target="npu")
    module = trace(lambda x, lengths: attention(x, lengths + 1), torch.zeros(2, 1, 16), torch.tensor([1, 1]))
    with pytest.raises(UnsupportedError) as caught:
        emitted(module, target="npu", hosts=["lengths_1"])
    assert caught.value.got == "add" and "host: true" in caught.value.expected
