"""What else runs a model on the CPU, each as its makers would have it: calls of each, and how long they take.

They take turns in blocks, whose first calls are not counted: the threads of some wait for work by spinning, and disturb
the one after for a while.
"""

import copy
import functools
import io
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_SETTLING, _BLOCK = 0.1, 0.2  # seconds
_LEAST = 10  # calls of a block
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
    """Seconds of a call: the median over blocks that take turns, in another order each time, without the first round
    and the first calls of each block."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(blocks + 1):
        for name in random.Random(turn).sample(sorted(calls), len(calls)):
            _call_for(_SETTLING, 1, calls[name])
            seconds = _call_for(_BLOCK, _LEAST, calls[name])
            if turn:
                found[name].append(seconds)
    return {name: statistics.median(times) for name, times in found.items()}


def _call_for(seconds: float, least: int, call: Call) -> float:
    """Seconds of one of the calls, of which there are as many as fit, and no fewer than `least`."""
    start, count = time.perf_counter(), 0
    while (passed := time.perf_counter() - start) < seconds or count < least:
        call()
        count += 1
    return passed / count


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
    return _onnx_session(subject, _onnx(subject))


def onnx_runtime_int8(subject: Subject) -> Call:
    """As its own `quantize_dynamic` makes it: weights by channel, activations by tensor, as it sees them."""
    return _onnx_session(subject, _int8_onnx(subject))


def _onnx(subject: Subject) -> bytes:
    written = io.BytesIO()
    torch.onnx.export(subject.exported(True), dynamo=True, verbose=False).save(written)
    return written.getvalue()


def _int8_onnx(subject: Subject) -> bytes:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as folder:
        floats, whole = Path(folder, "floats.onnx"), Path(folder, "int8.onnx")
        floats.write_bytes(_onnx(subject))
        quantize_dynamic(floats, whole, per_channel=True, weight_type=QuantType.QInt8)
        return whole.read_bytes()


def _onnx_session(subject: Subject, model: bytes) -> Call:
    import onnxruntime

    how = onnxruntime.SessionOptions()
    how.intra_op_num_threads = subject.threads
    session = onnxruntime.InferenceSession(model, how, providers=["CPUExecutionProvider"])
    fed = {name: value.numpy() for name, value in subject.inputs.items()}
    return lambda: torch.from_numpy(session.run(None, fed)[0])


def openvino(subject: Subject) -> Call:
    import openvino

    return _openvino_request(subject, openvino.convert_model(subject.exported(True)))


def openvino_int8(subject: Subject) -> Call:
    """Of the model that ONNX Runtime quantised."""
    import openvino

    return _openvino_request(subject, openvino.Core().read_model(_int8_onnx(subject)))


def _openvino_request(subject: Subject, model: Any) -> Call:
    import openvino

    how = {"INFERENCE_NUM_THREADS": subject.threads, "PERFORMANCE_HINT": "LATENCY"}
    how["INFERENCE_PRECISION_HINT"] = "f32" if subject.kind == torch.float32 else "bf16"
    request = openvino.Core().compile_model(model, "CPU", how).create_infer_request()
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
INT8: dict[str, Callable[[Subject], Call]] = {"ONNX Runtime": onnx_runtime_int8, "OpenVINO": openvino_int8}
