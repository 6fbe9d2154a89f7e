"""The sentence encoder on the CPU beside what else runs it: milliseconds of a call at five shapes, ours over the best.

Each runtime gets a model of its own for each shape, which is what it likes best, as many threads as we have, and takes
turns with the others in blocks of calls, of which the first is not counted: the threads of some wait for work by
spinning, and would disturb the one after. Times are medians of blocks.
"""

import functools
import io
import statistics
import time
from collections.abc import Callable, Mapping

import torch

import aotair
from aotair.model.load import load_model
from aotair.model.samples import random_inputs
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe, read_recipe
from aotair_runtime.format.text import table

from .common import BUILD, Row, options, report
from .five_shapes import SHAPES, artifact, recipe

CALLS = 10  # of a block
KINDS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "mixed": torch.bfloat16}
Inputs = Mapping[str, torch.Tensor]
Call = Callable[[], torch.Tensor]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--dtype", choices=KINDS, default="float32")
    parser.add_argument("--threads", type=int, default=2, help="threads of a call  [2]")
    parser.add_argument("--blocks", type=int, default=9, help="blocks of each  [9]")
    parser.add_argument("--only", nargs="+", default=[*PEERS], choices=PEERS, help="peers to compare with")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    served = aotair.load(artifact(given.dtype, given.rebuild))
    entry, original, exact = (
        job_of(parse_recipe(recipe(given.dtype))).entries[0],
        _model(given.dtype),
        _model("float32"),
    )
    lines, ratios, cosines = [], [], []
    for batch, seq in SHAPES:
        inputs = random_inputs(entry, {"batch": batch, "seq": seq}, 1)
        inputs["attention_mask"][:, 0] = 1  # no sentence is empty
        with torch.inference_mode():
            calls = {name: PEERS[name](original, inputs, given.dtype, given.threads) for name in given.only}
            calls["aotair"] = functools.partial(served, **inputs)
            want = exact(**inputs)
            cosines += [float(_cosine(call(), want)) for call in calls.values()]
            times = medians(calls, given.blocks)
        best = min(value for name, value in times.items() if name != "aotair")
        ratios.append(times["aotair"] / best)
        lines.append([f"{batch}, {seq}", *(f"{1e3 * value:.2f}" for value in times.values()), f"{ratios[-1]:.2f}"])
    print(f"milliseconds, {given.dtype}, {given.threads} threads, {torch.backends.cpu.get_cpu_capability()}")
    print(table(["batch, seq", *given.only, "aotair", "ours / best"], lines) + "\n")
    rows = [Row(f"{batch}, {seq}: ours / best", 1.0, one, "x") for (batch, seq), one in zip(SHAPES, ratios)]
    rows.append(Row("in the mean", 0.9, statistics.geometric_mean(ratios), "x"))
    rows.append(Row("least cosine of any beside float32", 0.9998, min(cosines), at_least=True))
    report(rows, given.json)


def medians(calls: Mapping[str, Call], blocks: int) -> dict[str, float]:
    """Seconds of a call: the median over blocks that take turns, without the first round and each block's first
    call."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(blocks + 1):
        for name, call in calls.items():
            call()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            if turn:
                found[name].append((time.perf_counter() - start) / CALLS)
    return {name: statistics.median(times) for name, times in found.items()}


def _eager(model: torch.nn.Module, inputs: Inputs, dtype: str, threads: int) -> Call:
    return functools.partial(model, **inputs)


def _compiled(model: torch.nn.Module, inputs: Inputs, dtype: str, threads: int) -> Call:
    return functools.partial(torch.compile(model, dynamic=False, options={"freezing": True}), **inputs)


def _aot_inductor(model: torch.nn.Module, inputs: Inputs, dtype: str, threads: int) -> Call:
    kind, shape = str(KINDS[dtype]).removeprefix("torch."), "x".join(map(str, inputs["input_ids"].shape))
    place = BUILD / "peers" / f"{kind}-{shape}.pt2"
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with torch.inference_mode(False), torch.no_grad():
            given = {name: value.clone() for name, value in inputs.items()}
            program = torch.export.export(model, (), given)
            how = {"freezing": True}
            torch._inductor.aoti_compile_and_package(program, package_path=str(place), inductor_configs=how)
    return functools.partial(torch._inductor.aoti_load_package(str(place)), **inputs)


def _onnx_runtime(model: torch.nn.Module, inputs: Inputs, dtype: str, threads: int) -> Call:
    """In float32, of which it has kernels for the CPU."""
    import onnxruntime

    written = io.BytesIO()
    with torch.inference_mode(False), torch.no_grad():
        given = {name: value.clone() for name, value in inputs.items()}
        torch.onnx.export(_model("float32"), (), kwargs=given, dynamo=True, verbose=False).save(written)
    how = onnxruntime.SessionOptions()
    how.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(written.getvalue(), how, providers=["CPUExecutionProvider"])
    fed = {name: value.numpy() for name, value in inputs.items()}
    return lambda: torch.from_numpy(session.run(None, fed)[0])


def _openvino(model: torch.nn.Module, inputs: Inputs, dtype: str, threads: int) -> Call:
    import openvino

    with torch.inference_mode(False), torch.no_grad():
        given = {name: value.clone() for name, value in inputs.items()}
        program = torch.export.export(_model("float32"), (), given)
        converted = openvino.convert_model(program)
    how = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    how["INFERENCE_PRECISION_HINT"] = "f32" if dtype == "float32" else "bf16"
    request = openvino.Core().compile_model(converted, "CPU", how).create_infer_request()
    fed = [value.numpy() for value in inputs.values()]

    def call() -> torch.Tensor:
        request.infer(fed, share_inputs=True)
        return torch.from_numpy(request.get_output_tensor(0).data)

    return call


PEERS: dict[str, Callable[[torch.nn.Module, Inputs, str, int], Call]] = {
    "eager": _eager,
    "torch.compile": _compiled,
    "AOTInductor": _aot_inductor,
    "ONNX Runtime": _onnx_runtime,
    "OpenVINO": _openvino,
}


def _cosine(one: object, other: torch.Tensor) -> torch.Tensor:
    found = one if isinstance(one, torch.Tensor) else next(iter(one))  # type: ignore[call-overload]  # a list of results
    return torch.nn.functional.cosine_similarity(found.float(), other, dim=-1).min()


def _model(dtype: str) -> torch.nn.Module:
    return load_model(job_of(read_recipe("recipes/minilm.yaml"))).to(KINDS[dtype]).eval()


if __name__ == "__main__":
    main()
