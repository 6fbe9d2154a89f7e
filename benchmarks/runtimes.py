"""What else runs a model on the CPU, each as its makers would have it: calls of each, and how long they take.

They take turns in blocks of calls, of which the first is not counted: the threads of some wait for work by spinning,
and would disturb the one after.
"""

import copy
import functools
import io
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

CALLS = 10  # of a block
Call = Callable[[], torch.Tensor]


@dataclass
class Subject:
    """A model in float32 that gives one tensor, and its inputs. `kind`: the dtype that it is to be run in; `place`:
    where AOTInductor's package of it stays."""

    exact: torch.nn.Module
    inputs: Mapping[str, torch.Tensor]
    kind: torch.dtype
    threads: int
    place: Path

    @functools.cached_property
    def model(self) -> torch.nn.Module:
        """In the dtype that it is to be run in."""
        with torch.inference_mode(False):
            return self.exact if self.kind == torch.float32 else copy.deepcopy(self.exact).to(self.kind)

    @functools.cached_property
    def given(self) -> dict[str, torch.Tensor]:
        """The inputs, with floats in that dtype."""
        return {name: value.to(self.kind) if value.is_floating_point() else value
                for name, value in self.inputs.items()}  # fmt: skip

    def exported(self, exact: bool) -> torch.export.ExportedProgram:
        with torch.inference_mode(False), torch.no_grad():
            inputs = {name: value.clone() for name, value in (self.inputs if exact else self.given).items()}
            return torch.export.export(self.exact if exact else self.model, (), inputs)


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


def eager(subject: Subject) -> Call:
    return functools.partial(subject.model, **subject.given)


def compiled(subject: Subject) -> Call:
    return functools.partial(torch.compile(subject.model, dynamic=False, options={"freezing": True}), **subject.given)


def aot_inductor(subject: Subject) -> Call:
    if not subject.place.exists():
        subject.place.parent.mkdir(parents=True, exist_ok=True)
        torch._inductor.aoti_compile_and_package(
            subject.exported(False), package_path=str(subject.place), inductor_configs={"freezing": True}
        )
    return functools.partial(torch._inductor.aoti_load_package(str(subject.place)), **subject.given)


def onnx_runtime(subject: Subject) -> Call:
    """In float32, of which it has kernels for the CPU."""
    import onnxruntime

    written = io.BytesIO()
    torch.onnx.export(subject.exported(True), dynamo=True, verbose=False).save(written)
    how = onnxruntime.SessionOptions()
    how.intra_op_num_threads = subject.threads
    session = onnxruntime.InferenceSession(written.getvalue(), how, providers=["CPUExecutionProvider"])
    fed = {name: value.numpy() for name, value in subject.inputs.items()}
    return lambda: torch.from_numpy(session.run(None, fed)[0])


def openvino(subject: Subject) -> Call:
    import openvino

    converted = openvino.convert_model(subject.exported(True))
    how = {"INFERENCE_NUM_THREADS": subject.threads, "PERFORMANCE_HINT": "LATENCY"}
    how["INFERENCE_PRECISION_HINT"] = "f32" if subject.kind == torch.float32 else "bf16"
    request = openvino.Core().compile_model(converted, "CPU", how).create_infer_request()
    fed = [value.numpy() for value in subject.inputs.values()]

    def call() -> torch.Tensor:
        request.infer(fed, share_inputs=True)
        return torch.from_numpy(request.get_output_tensor(0).data)

    return call


RUNTIMES: dict[str, Callable[[Subject], Call]] = {
    "eager": eager,
    "torch.compile": compiled,
    "AOTInductor": aot_inductor,
    "ONNX Runtime": onnx_runtime,
    "OpenVINO": openvino,
}
