"""New weights for a loaded model: their values, what is refused before a byte is written, what is taken back."""

import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from cases import MODELS, RECIPES, recipe
from nodes import Node

import aotair
from aotair.model.load import load_model
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe
from aotair_runtime.artifact.digests import digest
from aotair_runtime.artifact.open import open_artifact, read_program
from aotair_runtime.errors import ClosedError, WeightsError
from aotair_runtime.format import codec


def moved(name: str, by: float = 0.5, **model: object) -> torch.nn.Module:
    """The original of one of RECIPES with other weights."""
    original = host_model(changed(name, **model))
    for parameter in original.parameters():
        parameter.add_(by)
    return original


def host_model(data: dict) -> torch.nn.Module:
    with torch.device("cpu"):
        return load_model(job_of(parse_recipe(data)))


def changed(name: str, **model: object) -> dict:
    return RECIPES[name] | {"model": RECIPES[name]["model"] | model}


def saved(original: torch.nn.Module, file: Path, **other: torch.Tensor | None) -> Path:
    """A checkpoint of a model, with some tensors replaced, or left out."""
    tensors = {name: tensor.clone() for name, tensor in original.state_dict().items()} | other
    safetensors.torch.save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, file)
    return file


def built_for(node: Node, path: Path, data: dict, **options: object) -> Path:
    with torch.device("cpu"):
        return aotair.build(data | {"target": {"device": node.kind}}, path, **options)


def rewrite(path: Path, change) -> None:
    """Change the program of an artifact and give it a right digest again."""
    program = codec.parse((path / "program.msgpack").read_bytes(), "x")
    (path / "program.msgpack").write_bytes(codec.dump(change(program)))


def files(path: Path) -> dict[str, str]:
    return {str(file.relative_to(path)): digest(file) for file in sorted(path.rglob("*")) if file.is_file()}


def texts(model) -> list[bytes]:
    return [tensor.cpu().numpy().tobytes() for tensor in (*model._resident.constants, *model._resident.states)]


def refused(model, path: Path, says: str, **options: object) -> None:
    """Refused, with all weights, states and statistics as before."""
    before, stats = texts(model), model.stats()
    with pytest.raises(WeightsError, match=says):
        model.load_weights(path, **options)
    assert texts(model) == before and model.stats() == stats


IDS, MASK = torch.arange(1, 13).view(2, 6), torch.ones(2, 6, dtype=torch.int64)


# ---- the values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capture", ["all", "lazy"])
@pytest.mark.parametrize("options", [{}, {"disable_mempool_reuse_in_same_fx": True}, {"clone_input": False}])
def test_new_values_of_a_checkpoint(node, tmp_path: Path, capture: str, options: dict):
    path, other = node.path("encoder"), moved("encoder")
    disk = files(path)
    model = node.load("encoder", capture=capture, enable_output_clone=True, **options)
    ids, mask = IDS.to(node.device), MASK.to(node.device)
    old = model(ids, mask)
    stats, addresses = model.stats(), [tensor.data_ptr() for tensor in model._resident.constants]
    model.load_weights(saved(other, tmp_path / "w.safetensors"))
    assert model.stats() == replace(stats, reloads=1), "nothing else was counted"
    assert [tensor.data_ptr() for tensor in model._resident.constants] == addresses
    with torch.device("cpu"):
        want = other(IDS, MASK)
    torch.testing.assert_close(model(ids, mask).cpu(), want, atol=1e-3, rtol=1e-5)
    assert files(path) == disk, "the artifact is as it was"
    fresh = node.load("encoder", enable_output_clone=True)
    assert torch.equal(fresh(ids, mask), old), "another model of the artifact has its own weights"
    model.load_weights(path)
    assert torch.equal(model(ids, mask), old)


def test_a_sharded_directory_and_floats_of_another_dtype(node, tmp_path: Path):
    other = moved("linear")
    folder = tmp_path / "shards"
    folder.mkdir()
    for number, (name, tensor) in enumerate(other.state_dict().items()):
        safetensors.torch.save_file({name: tensor.double()}, folder / f"{number}.safetensors")
    model = node.load("linear", enable_output_clone=True)
    refused(model, folder, r"(?s)linear.bias is float64\[3\] in 1.safetensors, not float32\[3\].*cast=True")
    model.load_weights(folder, cast=True)
    x = torch.ones(1, 4)
    torch.testing.assert_close(model(x), other.to(node.device)(x))


def test_states_get_the_checkpoints_first_values_and_a_refusal_leaves_them(node, tmp_path: Path):
    model = node.load("counter", enable_output_clone=True)
    x = torch.ones(2, 4)
    assert model(x)[0, 0] == 1 and model(x)[0, 0] == 2
    bad = tmp_path / "bad.safetensors"
    safetensors.torch.save_file({"count": torch.tensor([float("nan")])}, bad)
    refused(model, bad, "NaN or infinities")
    assert model(x)[0, 0] == 3
    good = tmp_path / "good.safetensors"
    safetensors.torch.save_file({"count": torch.tensor([40.0])}, good)
    model.load_weights(good)
    assert model(x)[0, 0] == 41 and model(x)[0, 0] == 42
    model.reset_state()
    assert model(x)[0, 0] == 41


def test_callers_caches_keep_their_graphs(node, tmp_path: Path):
    """Golden inputs that are used in place take no place from a caller's."""
    model = node.load("cache", kept_graphs=1, enable_output_clone=True)
    cache, x = torch.zeros(2, 8, 3), torch.ones(2, 1, 3)
    model(x, cache, torch.tensor([0]))
    stats = model.stats()
    model.load_weights(node.path("cache"))
    assert replace(model.stats(), reloads=0) == stats and cache[:, 1:].eq(0).all()
    model(x, cache, torch.tensor([1]))
    assert model.stats().captures == stats.captures and cache[:, 1].eq(1).all()


def test_integers_and_tensors_that_no_checkpoint_has(node, tmp_path: Path):
    x = {"x": {"shape": [1, 4], "dtype": "float32"}}
    data = {"name": "m", "model": {"factory": f"{MODELS}:Buffers"}, "inputs": x}
    path = built_for(node, tmp_path / "m.aotair", data)
    kinds = {c.name: c.kind for c in read_program(path).constants}
    assert kinds == {"weight": "weight", "order": "weight", "allowed": "weight", "scale": "fixed"}
    assert read_program(path).unread == ("unread.weight", "unread.bias")
    model = aotair.load(path, device=node.kind, enable_output_clone=True)
    other = host_model(data)
    other.weight.add_(1)
    other.order.copy_(torch.tensor([3, 1, 0, 2]))
    other.allowed.copy_(torch.tensor([False, True, True, False]))
    refused(model, saved(other, tmp_path / "a", order=other.order.int()), r"order is int32\[4\]", cast=True)
    refused(model, saved(other, tmp_path / "b", allowed=other.allowed.to(torch.uint8)), r"allowed is uint8", cast=True)
    refused(model, saved(other, tmp_path / "c", scale=torch.ones(1)), "names the model does not have: scale")
    model.load_weights(saved(other, tmp_path / "d"))
    x = torch.arange(4.0).view(1, 4)
    torch.testing.assert_close(model(x), other.to(node.device)(x))


# ---- what is refused -----------------------------------------------------------------------------------------------


def test_names_and_shapes_are_listed(node, tmp_path: Path):
    model, other = node.load("encoder"), moved("encoder")
    lacking = saved(other, tmp_path / "a.safetensors", **{"qkv.weight": None, "up.bias": None})
    refused(model, lacking, "missing: qkv.weight, up.bias")
    more = saved(other, tmp_path / "b.safetensors", **{f"x{n}": torch.ones(1) for n in range(8)})
    refused(model, more, r"x0, x1, .*, x7 \(in b.safetensors\)(?s:.*)strict=False")
    model.load_weights(more, strict=False)
    refused(model, lacking, "missing: qkv.weight", strict=False)
    wide = saved(other, tmp_path / "c.safetensors", **{"qkv.weight": torch.ones(3, 3)})
    refused(model, wide, r"qkv.weight is float32\[3, 3\] in c.safetensors, not float32\[48, 16\]", cast=True)
    refused(model, tmp_path / "gone", "there are no weights here")


def test_weights_that_were_equal_must_stay_equal_or_be_stored_apart(node, tmp_path: Path):
    model = node.load("tied", enable_output_clone=True)
    (constant,) = model.program.constants
    assert constant.names == (("a.weight", "b.weight"), ("c.weight",)) and constant.kind == "weight"
    other = moved("tied")
    both = saved(other, tmp_path / "both.safetensors")
    model.load_weights(both)
    torch.testing.assert_close(model(torch.ones(4, 4)), other.to(node.device)(torch.ones(4, 4)))
    other = moved("tied").to("cpu")
    other.c.weight.mul_(2)
    apart = saved(other, tmp_path / "apart.safetensors", **{"b.weight": None})
    refused(model, apart, r"(?s)a.weight and c.weight are one tensor in the artifact.*share_equal_weights: false")
    untied = saved(other, tmp_path / "untied.safetensors", **{"b.weight": torch.ones(4, 4)})
    refused(model, untied, r"(?s)a.weight and b.weight are one tensor.*the model ties them")
    data = changed("tied", share_equal_weights=False)
    model = aotair.load(built_for(node, tmp_path / "t.aotair", data), device=node.kind, enable_output_clone=True)
    assert [c.name for c in model.program.constants] == ["a.weight", "c.weight"]
    model.load_weights(apart)
    torch.testing.assert_close(model(torch.ones(4, 4)), other.to(node.device)(torch.ones(4, 4)))


def test_an_artifact_that_does_not_say_what_its_constants_are(node, tmp_path: Path):
    path = Path(shutil.copytree(node.path("linear"), tmp_path / "old.aotair"))
    rewrite(path, lambda p: replace(p, constants=tuple(replace(c, kind="", names=()) for c in p.constants)))
    model = aotair.load(path, device=node.kind)
    refused(model, saved(moved("linear"), tmp_path / "w.safetensors"), "does not say which names")
    model.load_weights(node.path("linear"))


def test_int8_weights_follow_a_checkpoint(tmp_path: Path):
    row = {"shape": ["n", 32], "dtype": "float16"}
    parts = {
        "target": {"device": "npu"},
        "quantize": {"linear": "int8_dynamic"},
        "verify": {"atol": 2e-2, "rtol": 2e-2},
    }
    data = recipe("QuantBlock", {"x": row, "residual": row}, {"n": [2]}, dtype="float16", **parts)
    path = aotair.build(data, tmp_path / "q.aotair")
    model = aotair.load(path, device="cpu", allow_namespaces=["npu"], enable_output_clone=True)
    derived = {c.name for c in model.program.constants if c.kind == "derived"}
    layers = ("first", "second", "third")
    assert derived == {f"{layer}.{name}" for layer in layers for name in ("weight:clone", "weight:div", "bias:to_copy")}
    other = host_model(data)
    for parameter in other.parameters():
        parameter.mul_(0.75).add_(0.01)
    file = saved(other, tmp_path / "w.safetensors")
    x = torch.linspace(-2, 2, 64).view(2, 32).half()
    before = model(x, x)
    model.load_weights(file)
    after = model(x, x)
    fresh = aotair.build(data | {"model": data["model"] | {"weights": str(file)}}, tmp_path / "fresh.aotair")
    want = aotair.load(fresh, device="cpu", allow_namespaces=["npu"])(x, x)
    assert not torch.equal(after[0], before[0]) and all(map(torch.equal, after, want))
    model.load_weights(path)
    assert all(map(torch.equal, model(x, x), before))


def test_a_model_that_renames_what_it_saves(tmp_path: Path):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    def model():
        return torch.nn.Sequential(checkpoint_wrapper(torch.nn.Linear(4, 4)), torch.nn.Linear(4, 4)).eval()

    one, two, x = model(), model(), torch.randn(2, 4)
    path = aotair.build(model=one, out=tmp_path / "m.aotair", inputs={"input": x})
    loaded = aotair.load(path, enable_output_clone=True)
    assert loaded.program.unread == ()
    loaded.load_weights(saved(two, tmp_path / "two.safetensors"))
    torch.testing.assert_close(loaded(x), two(x).detach(), atol=1e-5, rtol=1e-5)


def test_weights_that_an_older_build_computed_are_refused_by_name(node, tmp_path: Path):
    """It does not say how."""
    path = Path(shutil.copytree(node.path("linear"), tmp_path / "old.aotair"))
    rewrite(path, lambda p: replace(p, constants=(replace(p.constants[0], kind="derived"), *p.constants[1:])))
    model = aotair.load(path, device=node.kind)
    refused(model, saved(moved("linear"), tmp_path / "w.safetensors"), r"(?s)does not say how.*linear\.")


def test_an_artifact_of_other_programs(node, tmp_path: Path):
    model = node.load("linear")
    refused(model, node.path("encoder"), "other constants than the model")
    fewer = built_for(node, tmp_path / "f.aotair", RECIPES["linear"] | {"buckets": {"n": [1]}})
    refused(model, fewer, "than the model")


def test_a_closed_model(node):
    model = node.load("linear")
    model.close()
    with pytest.raises(ClosedError):
        model.load_weights(node.path("linear"))


# ---- what is taken back --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_give_no_numbers_are_taken_back(node, tmp_path: Path, value: float):
    model = node.load("encoder")
    disk = files(node.path("encoder"))
    bad = saved(moved("encoder"), tmp_path / "w.safetensors", **{"out.bias": torch.full((16,), value)})
    refused(model, bad, "NaN or infinities, and they were not taken")
    assert files(node.path("encoder")) == disk


def test_an_artifact_that_does_not_answer_as_its_golden_tensors_is_taken_back(node, tmp_path: Path):
    model = node.load("linear")
    liar = Path(shutil.copytree(node.path("linear"), tmp_path / "liar.aotair"))
    file = liar / "weights.safetensors"
    saved(moved("linear"), file)
    rewrite(liar, lambda p: replace(p, files=(replace(p.files[0], sha256=digest(file)), *p.files[1:])))
    assert open_artifact(liar)
    refused(model, liar, r"(?s)does not answer as their golden tensors say.*an error of")


def test_whatever_fails_in_the_middle_is_taken_back(node, tmp_path: Path, monkeypatch):
    model = node.load("encoder")
    before = texts(model)

    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("aotair_runtime.weights.swap.replay_bucket", fail)
    with pytest.raises(KeyboardInterrupt):
        model.load_weights(saved(moved("encoder"), tmp_path / "w.safetensors"))
    assert texts(model) == before


def test_a_model_that_cannot_be_put_back_is_closed(node, tmp_path: Path, monkeypatch):
    model = node.load("linear")
    monkeypatch.setattr("aotair_runtime.weights.swap.same_bytes", lambda _: False)
    monkeypatch.setattr("aotair_runtime.weights.swap.replay_bucket", lambda *_: 1 / 0)
    with pytest.raises(WeightsError, match="the model is closed"):
        model.load_weights(saved(moved("linear"), tmp_path / "w.safetensors"))
    with pytest.raises(ClosedError):
        model(torch.ones(1, 4))


# ---- who sees what -------------------------------------------------------------------------------------------------


def test_callers_see_all_the_old_weights_or_all_the_new_ones(node, tmp_path: Path):
    """Weight and bias are the same number in each checkpoint, so that a mix would show."""
    paths = []
    for value in (1.0, 2.0):
        tensors = {"linear.weight": torch.full((3, 4), value), "linear.bias": torch.full((3,), value)}
        paths.append(tmp_path / f"{value}.safetensors")
        safetensors.torch.save_file(tensors, paths[-1])
    bad = tmp_path / "bad.safetensors"
    safetensors.torch.save_file(tensors | {"linear.bias": torch.full((3,), float("nan"))}, bad)
    model = node.load("linear", enable_output_clone=True)
    model.load_weights(paths[0])
    seen, stop, faults = set(), threading.Event(), []

    def call() -> None:
        try:
            with node.device, node.stream():
                while not stop.is_set():
                    seen.update(model(torch.ones(4, 4)).flatten().tolist())
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(12):
        if turn % 3 == 2:
            with pytest.raises(WeightsError):
                model.load_weights(bad)
        else:
            model.load_weights(paths[turn % 2])
    stop.set()
    for thread in threads:
        thread.join()
    assert not faults and seen == {5.0, 10.0}
