"""Weights in Ascend's format NZ: cast at load, read by matrix products, and cast again for other weights."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

import aotair
from aotair_runtime.devices import nz
from aotair_runtime.devices.allocators import ALLOCATORS
from aotair_runtime.errors import CaptureError, MalformedError, OutOfMemoryError, WeightsError
from aotair_runtime.format import codec
from aotair_runtime.format.packed import packed_constants
from aotair_runtime.format.rules import check_program
from aotair_runtime.format.schema import Form, Space, TensorArg
from aotair_runtime.memory.promise import Terms, promise

HALF = torch.float16
PACKED = "weights packed for the processor"


@pytest.fixture(autouse=True)
def on_npu(request: pytest.FixtureRequest) -> Iterator[None]:
    if "node" in request.fixturenames and request.getfixturevalue("node").kind != "npu":
        pytest.skip("a test of NPUs")
    yield


class Linears(torch.nn.Module):
    """Layers of sizes that no block divides: one is tied, one read from both sides, and as it lies too."""

    def __init__(self, seed: int):
        super().__init__()
        with torch.device("cpu"):
            torch.manual_seed(seed)
            self.up, self.down = torch.nn.Linear(65, 97), torch.nn.Linear(97, 65, bias=False)
            self.tied = torch.nn.Linear(65, 97)
            self.tied.weight = self.up.weight
            self.both = torch.nn.Linear(65, 33, bias=False)
            self.table = torch.nn.Parameter(torch.randn(65, 48) / 8)
            self.to(HALF)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = torch.relu(self.up(x)) + self.tied(x)
        narrow = self.down(wide) + x * self.both.weight[0]
        return torch.cat([narrow @ self.table, self.both(narrow) @ self.both.weight], -1)


class Quantised(torch.nn.Module):
    """Two layers that the recipe quantises."""

    def __init__(self, seed: int):
        super().__init__()
        with torch.device("cpu"):
            torch.manual_seed(seed)
            self.up, self.down = torch.nn.Linear(72, 48), torch.nn.Linear(48, 72, bias=False)
            self.to(HALF)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


class Experts(torch.nn.Module):
    """A product of groups of rows with a matrix each, whose sizes blocks divide."""

    def __init__(self, seed: int):
        super().__init__()
        with torch.device("cpu"):
            torch.manual_seed(seed)
            self.experts = torch.nn.Parameter((torch.randn(2, 64, 48) / 8).to(HALF))

    def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        product = torch.ops.npu.npu_grouped_matmul
        return product([x], [self.experts], group_list=ends, split_item=2, group_type=0, group_list_type=0)[0]


VERIFY = {"atol": 0.1, "rtol": 0.1}
MODELS = {
    "float16": (Linears, {"x": {"shape": ["n", 65], "dtype": "float16", "pad": 0}}, {}),
    "int8": (
        Quantised,
        {"x": {"shape": ["n", 72], "dtype": "float16", "pad": 0}},
        {"quantize": {"linear": "int8_dynamic"}},
    ),
}


def built(kind: str, path: Path, seed: int = 0, weight_nz: bool = True, device: str = "npu") -> Path:
    make, inputs, parts = MODELS[kind]
    with torch.device("cpu"):
        parts = parts | {"verify": VERIFY, "target": {"device": device}, "config": config(weight_nz)}
        return aotair.build(model=make(seed), out=path, inputs=inputs, buckets={"n": [2, 40]}, **parts)


def config(weight_nz: bool) -> aotair.CompilerConfig:
    found = aotair.CompilerConfig()
    found.experimental_config.weight_nz = weight_nz
    return found


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("nz")
    return {kind: built(kind, folder / f"{kind}.aotair") for kind in MODELS}


def saved(kind: str, path: Path, seed: int) -> Path:
    safetensors.torch.save_model(MODELS[kind][0](seed), str(path))
    return path


def answers(model, kind: str) -> list[torch.Tensor]:
    width = MODELS[kind][1]["x"]["shape"][1]
    with torch.device("cpu"):
        inputs = [torch.linspace(-1, 1, n * width).view(n, width).to(HALF) for n in (2, 33)]
    return [model(x.to(model.device)).cpu().clone() for x in inputs]


def same(one: list[torch.Tensor], two: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, one, two))


def addresses(model) -> dict[int, int]:
    return {number: one._packed.data_ptr() for number, one in model._resident.by_number.items()}


def promised(model) -> int:
    return next(item.nbytes for item in model.promise.items if item.name == PACKED)


def program_of(path: Path):
    return codec.parse((path / "program.msgpack").read_bytes(), "x")


# ---- numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
def test_weights_in_nz_give_the_numbers_of_plain_ones(node, paths, tmp_path: Path, kind: str):
    plain = built(kind, tmp_path / "plain.aotair", weight_nz=False)
    assert packed_constants(program_of(paths[kind])) and not packed_constants(program_of(plain))
    with aotair.load(paths[kind], device="npu") as model, aotair.load(plain, device="npu") as other:
        assert model._resident.packed and not other._resident.packed
        for one in model._resident.by_number.values():
            assert torch.ops.npu.get_npu_format(one._packed) == 29
        assert same(answers(model, kind), answers(other, kind))
        assert [b.fresh for b in model.program.entry_points[0].buckets] == [
            b.fresh for b in other.program.entry_points[0].buckets
        ]  # what was written to its place still is


def test_what_reads_each_weight(paths):
    names = {kind: {op for _, op in packed_constants(program_of(path))} for kind, path in paths.items()}
    assert names == {"float16": {"aten::mm.out", "aten::addmm.out"}, "int8": {"npu::npu_quant_matmul"}}


@pytest.mark.parametrize("kind", MODELS)
def test_a_host_reads_them_as_they_are(paths, kind: str):
    with aotair.load(paths[kind], device="cpu") as model:
        assert not model._resident.packed and not promised(model)
        want = MODELS[kind][0](0)
        with torch.no_grad(), torch.device("cpu"):
            x = torch.linspace(-1, 1, 2 * want.up.in_features).view(2, -1).to(HALF)
            torch.testing.assert_close(model(x), want(x), atol=0.1, rtol=0.1)


def test_a_node_may_leave_them_as_they_are(node, paths):
    with aotair.load(paths["float16"], device="npu") as model:
        want = answers(model, "float16")
    with aotair.load(paths["float16"], device="npu", pack_weights=False) as model:
        assert not model._resident.packed and same(answers(model, "float16"), want)


# ---- memory --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
def test_what_they_take_is_promised_and_the_plain_ones_stay_on_the_host(node, paths, kind: str):
    node.trim()
    before, _ = node.settle()
    with aotair.load(paths[kind], device="npu", capture="lazy") as model:
        resident = model._resident
        sizes = [one.nbytes for one in resident.by_number.values()]
        assert sum(sizes) == promised(model) > 0
        (there,) = [c for c in model.memory().categories if c.name == PACKED]
        assert there.promised == there.used == sum(sizes)
        plain = {number for number, tensor in enumerate(resident.constants) if tensor.device.type == "cpu"}
        assert plain <= set(resident.by_number)
        assert len(plain) == len(resident.by_number) - (kind == "float16")  # one is read as it lies too
        weights = next(item.nbytes for item in model.promise.items if item.name == "weights")
        on_device = [t for t in resident.constants if t.device.type == "npu"]
        assert weights == sum(-(-t.nbytes // 512) * 512 for t in on_device)
        assert model.memory().weights == sum(t.nbytes for t in on_device)
        taken = [*sizes, weights, model.promise.items[2].nbytes]
        blocks = sum(-(-(nbytes + 32) // 512) * 512 for nbytes in taken)
        assert node.settle()[0] - before <= blocks + 1024


def test_bytes_in_nz_are_those_of_whole_blocks():
    assert nz.packed_bytes((65, 97), HALF) == 80 * 112 * 2
    assert nz.packed_bytes((65, 97), torch.int8) == 80 * 128
    assert nz.packed_bytes((3, 16, 32), torch.int8) == 3 * 16 * 32


@pytest.mark.parametrize(
    ("sizes", "segments"),
    [([], 0), ([100, 200], 2), ([(1 << 20) - 512] * 3, 4), ([4 << 20] * 6, 40), ([11 << 20] * 2, 24)],
)
def test_blocks_share_segments_where_they_fit(sizes: list[int], segments: int):
    assert ALLOCATORS["npu"].reserved_apart(sizes) == segments << 20
    assert ALLOCATORS["cpu"].reserved_apart(sizes) == sum(sizes)


def test_reserved_blocks_are_at_most_those_that_are_promised(node):
    sizes = [nbytes << 10 for nbytes in (3, 700, 900, 30, 1500, 2500, 9000, 4000, 12000, 600)]
    node.trim()
    _, before = node.settle()
    held = [torch.empty(nbytes, dtype=torch.uint8, device="npu") for nbytes in sizes]
    assert node.settle()[1] - before <= ALLOCATORS["npu"].reserved_apart(sizes)
    del held


def test_packing_gives_back_what_it_took(node, paths):
    node.trim()
    _, before = node.settle()
    with aotair.load(paths["float16"], device="npu") as model:
        assert 0 < model.promise.packing < model.promise.packing_reserved
        assert model.promise.peak >= model.promise.reserved + model.promise.packing_reserved
        assert "to pack weights" in str(model.promise)
        assert node.settle()[1] - before <= model.promise.reserved


def test_no_load_and_no_reload_takes_more_than_is_promised(node, tmp_path: Path):
    """With weights beyond the size of segments that tensors share, and with several sizes of them."""
    import simcann

    with torch.device("cpu"):
        widths = (1200, 2304, 2705, 1200, 900)
        layers = [torch.nn.Linear(a, b, bias=False, dtype=HALF) for a, b in itertools.pairwise(widths)]
        made = torch.nn.Sequential(*layers)
        inputs = {"input": {"shape": [2, 1200], "dtype": "float16"}}
        parts = {"verify": VERIFY, "target": {"device": "npu"}, "config": config(True)}
        path = aotair.build(model=made, out=tmp_path / "m.aotair", inputs=inputs, **parts)
        safetensors.torch.save_model(made, str(tmp_path / "w.safetensors"))
    node.trim()
    before = simcann.live_bytes()
    simcann.reset_peak()
    with aotair.load(path, device="npu") as model:
        assert simcann.live_bytes() - before <= model.promise.reserved
        model.load_weights(tmp_path / "w.safetensors")
        assert model.promise.reserved < simcann.peak_bytes() - before <= model.promise.peak


# ---- other weights -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
def test_other_weights_are_cast_into_the_same_memory(node, paths, tmp_path: Path, kind: str):
    with aotair.load(paths[kind], device="npu") as model:
        first, places, captures = answers(model, kind), addresses(model), model.stats().captures
        reserved = node.settle()[1]
        for seed in (1, 2, 3):
            model.load_weights(saved(kind, tmp_path / "w.safetensors", seed))
            got = answers(model, kind)
            with aotair.load(built(kind, tmp_path / f"{seed}.aotair", seed), device="npu") as fresh:
                assert same(got, answers(fresh, kind)) and not same(got, first)
            assert addresses(model) == places
        assert model.stats().captures == captures and not model.stats().recaptures
        assert node.settle()[1] <= reserved
        model.load_weights(paths[kind])
        assert same(answers(model, kind), first) and addresses(model) == places


def test_an_adapter_is_cast_too_and_taken_away_bit_for_bit(node, paths, tmp_path: Path):
    with torch.device("cpu"):
        down, up = torch.randn(2, 97), torch.randn(65, 2)
        merged = Linears(0)
        merged.down.weight.data = (merged.down.weight.float() + up @ down).to(HALF)
    tensors = {"base_model.model.down.lora_A.weight": down, "base_model.model.down.lora_B.weight": up}
    safetensors.torch.save_file(tensors, tmp_path / "adapter_model.safetensors")
    said = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "bias": "none"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(said))
    safetensors.torch.save_model(merged, str(tmp_path / "merged.safetensors"))
    with aotair.load(paths["float16"], device="npu") as model, aotair.load(paths["float16"], device="npu") as other:
        before, places = answers(model, "float16"), addresses(model)
        other.load_weights(tmp_path / "merged.safetensors")
        model.load_adapter(tmp_path)
        got = answers(model, "float16")
        assert same(got, answers(other, "float16")) and not same(got, before)
        model.unload_adapter()
        assert same(answers(model, "float16"), before) and addresses(model) == places


def test_pages_of_the_host_that_a_reload_takes_are_promised(paths):
    program = program_of(paths["int8"])
    packed, plain = (promise(program, Terms("npu", pack_weights=packs)) for packs in (True, False))
    assert packed.reload - plain.reload == 2 * 48 * 72  # the two weights in int8, mapped from the file
    assert not plain.packing and packed.packing == 48 * 72 + max(
        nz.packed_bytes(s, torch.int8) for s in [(72, 48), (48, 72)]
    )


def test_weights_that_give_nan_leave_the_old_ones(node, paths, tmp_path: Path):
    spoilt = Linears(1)
    spoilt.up.weight.data[0, 0] = float("nan")
    safetensors.torch.save_model(spoilt, str(tmp_path / "w.safetensors"))
    with aotair.load(paths["float16"], device="npu") as model:
        before, places = answers(model, "float16"), addresses(model)
        with pytest.raises(WeightsError, match="NaN"):
            model.load_weights(tmp_path / "w.safetensors")
        assert same(answers(model, "float16"), before) and addresses(model) == places


def test_a_cast_that_fails_half_way_leaves_the_old_weights(node, paths, tmp_path: Path, monkeypatch):
    saved("float16", tmp_path / "w.safetensors", 1)
    with aotair.load(paths["float16"], device="npu") as model:
        before, calls, fill = answers(model, "float16"), iter(range(99)), nz.NzWeight.fill

        def broken(self, weight):
            if next(calls) == 2:
                raise RuntimeError("planted")
            fill(self, weight)

        monkeypatch.setattr(nz.NzWeight, "fill", broken)
        with pytest.raises(RuntimeError, match="planted"):
            model.load_weights(tmp_path / "w.safetensors")
        assert same(answers(model, "float16"), before)


# ---- what a kernel does not take -----------------------------------------------------------------------------------


def test_a_kernel_that_takes_no_nz_refuses_it(node, paths, monkeypatch):
    """As on a device: the numbers would be those of other places."""
    monkeypatch.delitem(__import__("simformats").READERS, "aten::mm.out")
    with pytest.raises(CaptureError, match="FRACTAL_NZ"):
        aotair.load(paths["float16"], device="npu")


def test_a_torch_npu_that_casts_nothing_is_named(node, paths, monkeypatch):
    monkeypatch.setattr(__import__("simformats"), "allowed", lambda: False)
    with pytest.raises(aotair.AotairError, match="keeps no weights in the format NZ"):
        aotair.load(paths["float16"], device="npu")


def test_the_option_of_the_process_is_as_before(node, paths):
    get = __import__("torch_npu")._C._npu_getOption
    before = get("ALLOW_INTERNAL_FORMAT")
    aotair.load(paths["float16"], device="npu").close()
    assert (get("ALLOW_INTERNAL_FORMAT") == b"enable") == (before == b"enable")


def test_a_device_without_room_to_cast_gives_everything_back(node, paths):
    import simcann

    node.trim()
    before = node.settle()
    with simcann.fail_next("aclrtMalloc", 2, 9), pytest.raises((OutOfMemoryError, torch.OutOfMemoryError)):
        aotair.load(paths["float16"], device="npu")
    node.trim()
    assert node.settle() == before


def test_programs_with_weights_in_nz_keep_the_rules_of_the_format(paths):
    for path in paths.values():
        check_program(program_of(path), "x")


# ---- groups --------------------------------------------------------------------------------------------------------


def test_groups_of_rows_read_experts_in_nz(node, tmp_path: Path):
    inputs = {
        "x": {"shape": [8, 64], "dtype": "float16"},
        "ends": {"shape": [2], "dtype": "int64", "range": [4, 9]},
    }
    with torch.device("cpu"):
        parts = {"verify": VERIFY, "target": {"device": "npu"}, "config": config(True)}
        path = aotair.build(model=Experts(0), out=tmp_path / "m.aotair", inputs=inputs, **parts)
        x, ends = torch.linspace(-1, 1, 512).view(8, 64).to(HALF), torch.tensor([3, 8])
        want = torch.cat([x[:3] @ Experts(0).experts[0], x[3:] @ Experts(0).experts[1]])
    with aotair.load(path, device="npu") as model:
        assert [op for _, op in packed_constants(model.program)] == ["npu::npu_grouped_matmul"]
        torch.testing.assert_close(model(x.npu(), ends.npu()).cpu(), want.detach(), atol=1e-2, rtol=1e-2)


# ---- an op that reads three, and in no other form ------------------------------------------------------------------


class Prolog(torch.nn.Module):
    """What multi-head latent attention does before it attends, into caches of two blocks of 16 tokens."""

    def __init__(self, seed: int):
        super().__init__()
        with torch.device("cpu"):
            torch.manual_seed(seed)
            shapes = {
                "down": (64, 32),
                "up": (32, 96),
                "key": (2, 16, 48),
                "latents": (64, 80),
                "one": (32,),
                "two": (48,),
            }
            for name, shape in shapes.items():
                self.register_parameter(name, torch.nn.Parameter((torch.randn(shape) / 8).bfloat16()))
            self.register_buffer("rows", torch.zeros(2, 16, 1, 48, dtype=torch.bfloat16), persistent=False)
            self.register_buffer("turned", torch.zeros(2, 16, 1, 32, dtype=torch.bfloat16), persistent=False)

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        cos, sin = (torch.full((x.shape[0], 32), value, dtype=x.dtype, device=x.device) for value in (0.8, 0.6))
        weights = (self.down, self.up, self.key, self.latents, self.one, self.two)
        query, rope, _, _, _, rows, turned = torch.ops.npu.npu_mla_prolog_v3_functional(
            x, *weights, sin, cos, self.rows, self.turned, cache_index=index
        )
        self.rows.copy_(rows)
        self.turned.copy_(turned)
        return torch.cat([query.flatten(1), rope.flatten(1), self.rows.flatten(0, 1).sum((0, 1)).expand(len(x), -1)], 1)


def prolog(path: Path, seed: int = 0, weight_nz: bool = True) -> Path:
    inputs = {
        "x": {"shape": [4, 64], "dtype": "bfloat16"},
        "index": {"shape": [4], "dtype": "int64", "range": [0, 32], "distinct": True},
    }
    parts = {"verify": VERIFY, "target": {"device": "npu"}, "config": config(weight_nz)}
    with torch.device("cpu"):
        return aotair.build(model=Prolog(seed), out=path, inputs=inputs, **parts)


def prolog_answers(model) -> list[torch.Tensor]:
    with torch.device("cpu"):
        x, index = torch.linspace(-1, 1, 256).view(4, 64).bfloat16(), torch.tensor([9, 3, 0, 31])
    found = model(x.to(model.device), index.to(model.device)).cpu().clone()
    return [found, *(tensor.cpu().clone() for tensor in model.state.values())]


def test_an_op_reads_three_weights_in_nz_and_no_other_form(node, tmp_path: Path):
    path = prolog(tmp_path / "m.aotair")
    program = program_of(path)
    assert [op for _, op in packed_constants(program)] == ["npu::npu_mla_prolog_v3"] * 3
    with aotair.load(path, device="cpu") as model:
        want = prolog_answers(model)
        assert not model._resident.packed
    for options in ({}, {"pack_weights": False}):  # without them there is no kernel
        with aotair.load(path, device="npu", **options) as model:
            assert len(model._resident.by_number) == 3 and promised(model) == (64 * 32 + 32 * 96 + 64 * 80) * 2
            for got, expected in zip(prolog_answers(model), want, strict=True):
                torch.testing.assert_close(got, expected, atol=2e-2, rtol=2e-2)
            assert all(tensor.any() for tensor in want)


def test_other_weights_of_such_an_op_are_those_of_a_fresh_build(node, tmp_path: Path):
    safetensors.torch.save_model(Prolog(1), str(tmp_path / "w.safetensors"))
    with (
        aotair.load(prolog(tmp_path / "m.aotair"), device="npu") as model,
        aotair.load(prolog(tmp_path / "other.aotair", 1), device="npu") as fresh,
    ):
        first, places, captures = prolog_answers(model), addresses(model), model.stats().captures
        model.load_weights(tmp_path / "w.safetensors")
        got = prolog_answers(model)
        assert same(got, prolog_answers(fresh)) and not same(got, first)
        assert addresses(model) == places and model.stats().captures == captures


def test_such_an_op_refuses_weights_as_they_lie(node, tmp_path: Path):
    path = prolog(tmp_path / "m.aotair", weight_nz=False)
    with pytest.raises(CaptureError, match="its weights in FRACTAL_NZ alone"):
        aotair.load(path, device="npu")


@pytest.mark.parametrize("place", [1, 2, 4])
def test_a_program_that_packs_some_of_them_alone_is_refused(tmp_path: Path, place: int):
    program = program_of(prolog(tmp_path / "m.aotair"))
    bucket = program.entry_points[0].buckets[0]
    code = next(n for n in bucket.code if len(program.instructions[n].args) == 11)
    item = program.instructions[code]
    plain = item.args[6]
    for args in (
        (*item.args[:place], plain, *item.args[place + 1 :]),
        (*item.args[:6], item.args[place], *item.args[7:]),
    ):
        made = replace(item, args=args)
        instructions = (*program.instructions[:code], made, *program.instructions[code + 1 :])
        with pytest.raises(MalformedError):
            check_program(replace(program, instructions=instructions), "x")


# ---- hostile programs ----------------------------------------------------------------------------------------------


def changed(program, kind: str, change):
    """A program in which one placement, or the instruction that reads it, is another."""
    entry = program.entry_points[0]
    bucket = entry.buckets[0]
    tensor = next(n for n, item in enumerate(bucket.tensors) if item.space == Space.PACKED)
    code = next(n for n in bucket.code if TensorArg(tensor) in program.instructions[n].args)
    if kind == "layout":
        layouts = (*program.layouts, change(program.layouts[bucket.tensors[tensor].layout]))
        placed = replace(bucket.tensors[tensor], layout=len(program.layouts))
        tensors = (*bucket.tensors[:tensor], placed, *bucket.tensors[tensor + 1 :])
        buckets = (replace(bucket, tensors=tensors), *entry.buckets[1:])
        return replace(program, layouts=layouts, entry_points=(replace(entry, buckets=buckets),))
    made = change(program.instructions[code], tensor)
    return replace(program, instructions=(*program.instructions[:code], made, *program.instructions[code + 1 :]))


def turned(layout):
    return replace(layout, shape=layout.shape[::-1], strides=layout.strides[::-1])


@pytest.mark.parametrize(
    ("name", "kind", "change"),
    [
        ("float16", "layout", lambda found: replace(found, strides=(1, 1))),
        ("float16", "layout", lambda found: replace(found, shape=(found.shape[0] - 1, found.shape[1]))),
        ("float16", "layout", lambda found: replace(found, shape=(1, *found.shape), strides=(1, *found.strides))),
        ("float16", "instruction", lambda item, _: replace(item, form=int(Form.COPY))),
        ("float16", "instruction", lambda item, _: replace(item, form=int(Form.EFFECT))),
        ("float16", "instruction", lambda item, tensor: replace(item, outs=(tensor,))),
        ("float16", "instruction", lambda item, _: replace(item, args=item.args[::-1])),
        ("float16", "instruction", lambda item, tensor: replace(item, kwargs=(("alpha", TensorArg(tensor)),))),
        ("int8", "layout", turned),
        ("int8", "instruction", lambda item, _: replace(item, form=int(Form.OUT))),
        ("int8", "instruction", lambda item, tensor: replace(item, args=(item.args[0], (TensorArg(tensor),)))),
    ],
)
def test_a_weight_in_nz_elsewhere_is_refused(paths, name: str, kind: str, change):
    program = program_of(paths[name])
    check_program(program, "x")
    with pytest.raises(MalformedError):
        check_program(changed(program, kind, change), "x")


def test_turned_weights_are_legal_where_the_kernel_turns_them(paths):
    program = program_of(paths["float16"])
    packed = [item for item in program.entry_points[0].buckets[0].tensors if item.space == Space.PACKED]
    assert {program.layouts[item.layout].strides[0] == 1 for item in packed} == {True, False}
