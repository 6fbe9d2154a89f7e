"""Do lists of the host reach the kernels, whatever they were at the last call, and is what does not fit refused?"""

import random
import threading

import pytest
import torch
from cases import MODELS, RECIPES

import aotair
from aotair.model.load import load_model
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe
from aotair_runtime.artifact.open import read_program
from aotair_runtime.call.host_time import without_replay
from aotair_runtime.errors import AotairError, ArgumentError, ShapeError
from aotair_runtime.format.schema import HostArg


def inputs(node, n: int, seed: int = 0):
    generator = torch.Generator("cpu").manual_seed(seed)
    made = (torch.randn(*shape, generator=generator, device="cpu") for shape in ((n, 1, 16), (n, 6, 16)))
    return tuple(tensor.to(node.device) for tensor in made)


@pytest.fixture
def reference(original):
    """The original on the CPU, with lists."""
    model = original("decode").cpu()
    return lambda x, keys, *lists: model(x.cpu(), keys.cpu(), *(list(map(int, one)) for one in lists))


def close(got, want):
    torch.testing.assert_close(got.cpu(), want, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("options", [{}, {"capture": "lazy"}, {"enable_output_clone": True}, {"clone_input": False}])
def test_each_call_has_its_lengths(node, reference, options):
    model, draw = node.load("decode", **options), random.Random(1)
    for turn in range(30):
        n = draw.choice([1, 2, 3, 4])
        x, keys = inputs(node, n, turn)
        for _ in range(draw.choice([1, 2, 3])):
            lists = [[draw.randrange(1, 7) for _ in range(n)] for _ in range(2)]
            for _ in range(2):  # both changed, none
                close(model(x, keys, *lists), reference(x, keys, *lists))
            lists[draw.choice([0, 1])] = [draw.randrange(1, 7) for _ in range(n)]
            close(model(x, keys, *lists), reference(x, keys, *lists))


def test_a_bucket_that_reads_no_list_takes_the_call_s_lists_too(node, tmp_path):
    """The model looks at its lists for more than two rows only: the smaller bucket has nothing to replace."""
    recipe = RECIPES["decode"] | {"model": {"factory": f"{MODELS}:LongDecode"}, "buckets": {"n": [2, 4]}}
    exact = {name: {k: v for k, v in item.items() if k != "pad"} for name, item in recipe["inputs"].items()}
    with torch.device("cpu"):
        path = aotair.build(recipe | {"inputs": exact, "target": {"device": node.kind}}, tmp_path / "long.aotair")
    updated = [bucket.updated for bucket in read_program(path).entry_points[0].buckets]
    assert updated == ([0, 2] if node.kind == "npu" else [0, 0])
    model, original = aotair.load(path), load_model(job_of(parse_recipe(recipe))).cpu()
    for n, lists in ((2, ([1, 2], [3, 4])), (4, ([1, 2, 3, 4], [6, 5, 4, 3])), (2, ([5, 5], [6, 6]))):
        x, keys = inputs(node, n)
        close(model(x, keys, *lists), original(x.cpu(), keys.cpu(), *lists))


def test_lists_tuples_and_tensors_are_the_same(node, reference):
    model = node.load("decode", enable_output_clone=True)
    x, keys = inputs(node, 3)
    want = reference(x, keys, [1, 5, 2], [1, 1, 1])
    for lengths in ([1, 5, 2], (1, 5, 2), torch.tensor([1, 5, 2], device="cpu")):
        close(model(x, keys, lengths, [1, 1, 1]), want)
        close(model(x, others=[1, 1, 1], lengths=lengths, keys=keys), want)
        close(model({"x": x, "keys": keys, "lengths": lengths, "others": [1, 1, 1]}), want)


def test_a_list_that_the_caller_changes_is_another(node, reference):
    model, lengths = node.load("decode", enable_output_clone=True), [1, 1]
    x, keys = inputs(node, 2)
    for length in (1, 4, 6, 2):
        lengths[1] = length
        close(model(x, keys, lengths, [1, 2]), reference(x, keys, lengths, [1, 2]))


def test_values_choose_no_bucket_and_make_no_plan(node):
    model = node.load("decode", enable_output_clone=True)
    x, keys = inputs(node, 2)
    model(x, keys, [1, 1], [1, 1])
    plans, last = len(model.forward._plans), model.forward._plans.last
    for length in range(1, 7):
        model(x, keys, [length, length], [1, length])
        assert model.forward._plans.last is last
    assert len(model.forward._plans) == plans and model.stats().captures == 3


@pytest.mark.parametrize(
    ("lengths", "error"),
    [
        ([0, 1], ArgumentError), ([1, 7], ArgumentError), ([1.0, 2], ArgumentError), ([True, 2], ArgumentError),
        ("12", ArgumentError), (None, ArgumentError), ([1], ShapeError), ([], ShapeError), ([1] * 5, ShapeError),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_and_changes_nothing(node, reference, lengths, error):
    model = node.load("decode", enable_output_clone=True)
    x, keys = inputs(node, 2)
    model(x, keys, [2, 3], [2, 2])
    with pytest.raises(error):
        model(x, keys, lengths, [1, 2])
    close(model(x, keys, [2, 3], [2, 2]), reference(x, keys, [2, 3], [2, 2]))


def test_tensors_that_are_no_lengths_are_refused(node):
    model = node.load("decode")
    x, keys = inputs(node, 2)
    wrong = [torch.ones(2, device="cpu"), torch.ones(2, 1, dtype=torch.int64, device="cpu")]
    if node.has_graphs:
        wrong.append(torch.ones(2, dtype=torch.int64, device=node.device))
    for lengths in wrong:
        with pytest.raises(AotairError):
            model(x, keys, [1, 2], lengths)


def test_threads_have_lengths_of_their_own(node, reference):
    model, failures = node.load("decode", enable_output_clone=True), []

    def work(seed: int) -> None:
        draw = random.Random(seed)
        x, keys = inputs(node, 3, seed)
        with node.stream():
            for _ in range(15):
                lengths = [draw.randrange(1, 7) for _ in range(3)]
                try:
                    close(model(x, keys, lengths, lengths[::-1]), reference(x, keys, lengths, lengths[::-1]))
                except BaseException as error:
                    failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_a_pool_that_grows_and_a_second_model(node, reference):
    pool = aotair.graph_pool(node.kind)
    model = node.load("decode", pool=pool, enable_output_clone=True)
    x, keys = inputs(node, 4)
    lists = [1, 2, 3, 4], [4, 3, 2, 1]
    close(model(x, keys, *lists), reference(x, keys, *lists))
    other = node.load("encoder", pool=pool, enable_output_clone=True)
    pool.reserve(1 << 20)
    ids = torch.ones(1, 4, dtype=torch.int64)
    for turn in range(1, 6):
        lengths = [turn, 6, 1, 7 - turn]
        close(model(x, keys, lengths, lengths[::-1]), reference(x, keys, lengths, lengths[::-1]))
        assert other(ids, ids).isfinite().all()


def test_timing_without_replays_and_golden_numbers(node):
    from aotair_runtime.weights.golden import replay_golden

    model = node.load("decode")
    assert all(result.within for result in replay_golden(model))
    x, keys = inputs(node, 2)
    with without_replay(model.forward, [x, keys, [1, 2], [1, 2]]):
        model(x, keys, [3, 4], [3, 4])
    assert "keys" in model.inputs["n=2"] and ("lengths" in model.inputs["n=2"]) == (node.kind == "cpu")


def test_an_npu_gets_lists_and_others_tensors(node):
    program = read_program(node.path("decode"))
    named = {arg.input for item in program.instructions for _, arg in item.kwargs if isinstance(arg, HostArg)}
    updated = [bucket.updated for bucket in program.entry_points[0].buckets]
    assert (named, updated) == (({2, 3}, [2, 2, 2]) if node.kind == "npu" else (set(), [0, 0, 0]))
