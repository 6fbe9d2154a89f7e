"""How a list of lengths gets through an export, and what a model may not do with it."""

import pytest
import torch
from cases import LENGTHS, RECIPES

import aotair
from aotair.errors import RecipeError, UnsupportedError
from aotair.export.host_inputs import HostInput, with_host_inputs
from aotair.ops.npu import OPS
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe
from aotair_runtime.artifact.open import read_program
from aotair_runtime.format.schema import HostArg, WorkspaceArg

ROWS = {"shape": ["n", 1, 16], "dtype": "float32"}
attention = torch.ops.npu.npu_fused_infer_attention_score


class Attention(torch.nn.Module):
    """Attention of x to itself with what `lengths(list)` makes of the list."""

    def __init__(self, use):
        super().__init__()
        self.use = use

    def forward(self, x, lengths):
        return self.use(x, lengths)


USES = {
    "plus one": lambda x, lengths: attention(x, x, x, actual_seq_lengths_kv=lengths + 1)[0],
    "an item": lambda x, lengths: x * lengths[0],
    "its length": lambda x, lengths: x * len(lengths),
    "a loop": lambda x, lengths: attention(x, x, x, actual_seq_lengths_kv=[n + 1 for n in lengths])[0],
    "a tensor of it": lambda x, lengths: x * torch.tensor(lengths).view(-1, 1, 1),
    "a condition": lambda x, lengths: x if lengths else -x,
    "a method": lambda x, lengths: x * lengths.count(1),
    "a product": lambda x, lengths: torch.mul(x, lengths),
    "another argument": lambda x, lengths: torch.ops.npu.npu_fused_infer_attention_score(x, x, lengths)[0],
}


def recipe(use: str, device: str = "npu", **lengths) -> dict:
    return {
        "name": "attention",
        "model": {"factory": f"{__file__}:make", "kwargs": {"use": use}},
        "target": {"device": device},
        "inputs": {"x": ROWS, "lengths": LENGTHS | {"range": [1, 2]} | lengths},
        "buckets": {"n": [2, 4]},
    }


def make(use: str) -> torch.nn.Module:
    return Attention(USES[use] if use in USES else globals()[use])


@pytest.mark.parametrize("use", USES)
def test_a_list_is_handed_on_or_refused(tmp_path, use):
    with pytest.raises(aotair.AotairError, match="host input 'lengths'") as caught:
        from aotair.export.export import export
        from aotair.recipe.job import job_of
        from aotair.recipe.read import parse_recipe

        export(make(use), job_of(parse_recipe(recipe(use))).entries[0])
    assert isinstance(caught.value, UnsupportedError)
    assert "test_host_inputs.py" in str(caught.value)


@pytest.mark.parametrize(
    "changes", [{"dtype": "int32"}, {"shape": ["n", 1]}, {"mutated": True, "pad": None}, {"range": None}]
)
def test_a_host_input_is_a_list_of_ints(changes):
    with pytest.raises(RecipeError):
        aotair.build(recipe("plus one", **changes))


def by_position(x, lengths):
    overload = attention.default
    return overload(x, x, x, actual_seq_lengths=None, actual_seq_lengths_kv=lengths)[0]


def version_two(x, lengths):
    both = torch.ops.npu.npu_fused_infer_attention_score_v2(
        x, x, x, actual_seq_kvlen=lengths, return_softmax_lse=True, num_query_heads=2
    )
    return both[0] + both[1].amax(1)


def tensors(x, lengths):
    """A model that knows the op with tensors."""
    return torch.ops.air.fused_infer_attention_score(x, x, x, actual_seq_lengths_kv_tensor=lengths + 0)[0]


@pytest.mark.parametrize("device", ["cpu", "npu"])
@pytest.mark.parametrize("use", ["by_position", "version_two"])
def test_both_versions_and_overloads(tmp_path, use, device):
    model = aotair.load(aotair.build(recipe(use, device), tmp_path / "a.aotair"), device="cpu")
    x = torch.randn(4, 1, 16)
    torch.testing.assert_close(model(x, [1] * 4), globals()[use](x, [1] * 4))
    kinds = {type(arg) for item in read_program(tmp_path / "a.aotair").instructions for _, arg in item.kwargs}
    assert ({HostArg, WorkspaceArg} <= kinds) == (device == "npu")


def test_on_other_devices_lengths_may_be_tensors(tmp_path):
    made = recipe("tensors", "cpu", host=False)
    x, lengths = torch.randn(4, 1, 16), torch.tensor([1] * 4)
    model = aotair.load(aotair.build(made, tmp_path / "a.aotair"))
    torch.testing.assert_close(model(x, lengths), tensors(x, lengths))
    with pytest.raises(UnsupportedError, match="no host input"):
        aotair.build(recipe("tensors", "npu", host=False), tmp_path / "b.aotair")


@pytest.mark.parametrize("name", ["fused_infer_attention_score", "fused_infer_attention_score_v2"])
def test_the_op_with_tensors_gives_the_same(name):
    x, keys = torch.randn(3, 1, 16), torch.randn(3, 5, 16)
    heads, lists = (
        ("num_query_heads", "actual_seq_kvlen") if name[-1] == "2" else ("num_heads", "actual_seq_lengths_kv")
    )
    options = {heads: 2}
    want = getattr(torch.ops.npu, f"npu_{name}")(x, keys, keys, **options, **{lists: [1, 4, 5]})
    lengths = torch.tensor([1, 4, 5])
    got = getattr(torch.ops.air, name)(x, keys, keys, **options, **{f"{lists}_tensor": lengths})
    assert torch.equal(got[0], want[0])
    meta = getattr(torch.ops.air, name)(x.to("meta"), keys.to("meta"), keys.to("meta"), **options)
    assert [tuple(item.shape) for item in meta] == [tuple(item.shape) for item in want]
    assert all(not op.name.startswith("air") for op in OPS)


def test_the_recipe_of_the_tests_has_a_constant_list():
    assert RECIPES["decode"]["inputs"]["lengths"]["host"]


def test_the_command_line_takes_lists_as_tensors(tmp_path):
    import safetensors.torch
    from click.testing import CliRunner

    from aotair.cli import main

    path, file = aotair.build(recipe("by_position"), tmp_path / "a.aotair"), tmp_path / "in.safetensors"
    safetensors.torch.save_file({"x": torch.randn(2, 1, 16), "lengths": torch.tensor([1, 1])}, file)
    for arguments in (["run", str(path), str(file)], ["verify", str(path)], ["inspect", str(path)]):
        options = [] if arguments[0] == "inspect" else ["--device", "cpu"]
        done = CliRunner().invoke(main, [*arguments, *options])
        assert done.exit_code == 0, done.output
    assert "a list of the host" in done.output


def test_a_device_without_a_kernel_for_it_is_refused_at_build_time(tmp_path):
    with pytest.raises(UnsupportedError, match=r"air\.fused_infer_attention_score\.default has no kernel on cuda"):
        aotair.build(RECIPES["decode"] | {"target": {"device": "cuda"}}, tmp_path / "a.aotair")


# ---- a list alone ----------------------------------------------------------------------------------------------------


def the_list(name: str = "lengths") -> HostInput:
    return HostInput(name, torch.tensor([1, 2]))


@pytest.mark.parametrize(
    ("use", "got"),
    [
        (lambda it: it + 1, "__add__"),
        (lambda it: 1 + it, "__radd__"),
        (lambda it: it * 2, "__mul__"),
        (lambda it: it - 2, "__sub__"),
        (lambda it: it[0], "__getitem__"),
        (lambda it: it.__setitem__(0, 1), "__setitem__"),
        (lambda it: list(it), "__iter__"),
        (lambda it: len(it), "__len__"),
        (lambda it: 1 in it, "__contains__"),
        (lambda it: bool(it), "__bool__"),
        (lambda it: int(it), "__int__"),
        (lambda it: range(it), "__index__"),
        (lambda it: it == [1, 2], "__eq__"),
        (lambda it: it != [1, 2], "__ne__"),
        (lambda it: it < [1], "__lt__"),
        (lambda it: -it, "__neg__"),
        (lambda it: reversed(it), "__reversed__"),
        (lambda it: it.append(3), ".append"),
        (lambda it: it.shape, ".shape"),
    ],
)
def test_nothing_can_be_done_with_it(use, got):
    with pytest.raises(UnsupportedError, match="the model uses the host input 'lengths' otherwise") as caught:
        use(the_list())
    assert caught.value.got == got
    assert "torch.ops.npu.npu_fused_infer_attention_score" in caught.value.expected and caught.value.fix


def test_it_may_be_kept_and_asked_for_what_python_asks():
    it = the_list()
    assert {it: 1}[it] == 1 and isinstance(it, HostInput)
    with pytest.raises(AttributeError):
        _ = it.__array_interface__
    assert not hasattr(it, "__cuda_array_interface__")


@pytest.mark.parametrize(
    "call",
    [
        lambda it, x: torch.add(x, it),
        lambda it, x: torch.ops.aten.add.Tensor(x, it),
        lambda it, x: torch.cat([x, it]),
        lambda it, x: torch.where(x > 0, x, other=it),
        lambda it, x: torch.ops.npu.npu_fused_infer_attention_score.out(x, x, x, actual_seq_lengths=it, workspace=x),
    ],
    ids=["a function", "an op", "in a list", "by name", "another overload"],
)
def test_another_op_does_not_take_it(call):
    with pytest.raises(UnsupportedError, match="the host input 'lengths'") as caught:
        call(the_list(), torch.zeros(2))
    assert caught.value.got.startswith("an argument of ")


@pytest.mark.parametrize("by_name", [True, False])
def test_an_op_that_takes_it_becomes_the_one_with_a_tensor(by_name, monkeypatch):
    from aotair.export import host_inputs

    seen = []
    monkeypatch.setattr(host_inputs, "with_tensors", lambda name: lambda *args, **kw: seen.append((name, args, kw)))
    x, it = torch.zeros(2, 1, 16), the_list()
    attention(x, x, x, num_heads=2, actual_seq_lengths_kv=it)
    ((name, args, kwargs),) = seen
    assert name == "npu_fused_infer_attention_score" and len(args) == 3
    assert kwargs == {"num_heads": 2, "actual_seq_lengths_kv_tensor": it._tensor}
    overload = attention.default if by_name else torch.ops.npu.npu_fused_infer_attention_score_v2
    key = "actual_seq_lengths_kv" if by_name else "actual_seq_kvlen"
    overload(x, x, x, **{key: it})
    assert seen[1][2] == {f"{key}_tensor": it._tensor}


def test_two_lists_of_one_call_are_both_taken(monkeypatch):
    from aotair.export import host_inputs

    seen = []
    monkeypatch.setattr(host_inputs, "with_tensors", lambda name: lambda *args, **kw: seen.append(kw))
    x, a, b = torch.zeros(2, 1, 16), the_list("a"), the_list("b")
    attention(x, x, x, actual_seq_lengths=a, actual_seq_lengths_kv=b)
    assert seen == [{"actual_seq_lengths_tensor": a._tensor, "actual_seq_lengths_kv_tensor": b._tensor}]
    with pytest.raises(UnsupportedError, match="the host input 'b'"):
        attention(x, x, b, actual_seq_lengths=a)


def test_host_inputs_become_lists_and_others_stay():
    job = job_of(parse_recipe(recipe("plus one"))).entries[0]
    x, lengths = torch.zeros(2, 1, 16), torch.tensor([1, 1])
    found = with_host_inputs({"x": x, "lengths": lengths}, job)
    assert found["x"] is x and isinstance(found["lengths"], HostInput)
    assert found["lengths"]._tensor is lengths and found["lengths"]._name == "lengths"
