"""Quantised layers and experts on each device: every scheme that it has answers like those of floats, nearly."""

import pytest
import safetensors.torch
import torch
from mixtures import Experts
from nodes import Node

import aotair
from aotair.model.experts import experts_forward
from aotair.target.target import Target
from aotair_runtime.format.packed import packed_constants

NEAR = {"int8_dynamic": 0.03, "int8_static": 0.08, "int8_weight_only": 0.02, "int4_weight_only": 0.2}


class Gated(torch.nn.Module):
    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.gate, self.up = torch.nn.Linear(64, 96), torch.nn.Linear(64, 96, bias=False)
        self.down = torch.nn.Linear(96, 64)
        self.half().requires_grad_(False)

    def forward(self, x):
        return self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))


@pytest.mark.parametrize("scheme", NEAR)
def test_a_device_answers_like_the_layers_of_floats(node: Node, tmp_path, scheme):
    if scheme not in Target(node.kind).quantized_linear:
        pytest.skip(f"{node.kind} has no kernel for {scheme}")
    with torch.device("cpu"):
        one, two = Gated(1), Gated(2)
        asked = {"linear": scheme} | ({"group_size": 32} if scheme == "int4_weight_only" else {})
        x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)).half()
        path = aotair.build(
            model=one,
            out=tmp_path / "m.aotair",
            inputs={"x": {"shape": ["n", 64], "dtype": "float16", "pad": "any"}},
            buckets={"n": [1, 4]},
            target={"device": node.kind},
            quantize=asked,
            verify={"atol": 2e-2, "rtol": 2e-2},
        )
        safetensors.torch.save_file(two.state_dict(), tmp_path / "two.safetensors")
    with aotair.load(path, device=node.kind, enable_output_clone=True) as model:
        # A static scale is that of the first model's activations.
        for original, near in ((one, NEAR[scheme]), (two, 0.2)):
            for rows in (3, 1):
                with torch.device("cpu"):
                    want = original(x[:rows]).float()
                got = model(x[:rows].to(node.device)).cpu().float()
                assert 0 < (got - want).norm() < near * want.norm()
            model.load_weights(tmp_path / "two.safetensors")


class Routed(torch.nn.Module):
    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.router = torch.nn.Linear(64, 4, bias=False)
        self.experts = type("Served", (Experts,), {"forward": experts_forward})(4, False, width=64, inner=32)
        self.half().requires_grad_(False)

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(2)
        return self.experts(x, chosen, weights)


@pytest.mark.parametrize("scheme", ["int8_dynamic", "int8_weight_only"])
@pytest.mark.parametrize("nz", [False, True])
def test_a_device_answers_like_experts_of_floats(node: Node, tmp_path, scheme, nz):
    if scheme not in Target(node.kind).quantized_experts or (nz and node.kind != "npu"):
        pytest.skip(f"{node.kind} has no kernel for {scheme}")
    config = aotair.CompilerConfig()
    config.experimental_config.weight_nz = nz
    with torch.device("cpu"):
        one, two = Routed(1), Routed(2)
        x = torch.randn(6, 64, generator=torch.Generator().manual_seed(0)).half()
        path = aotair.build(
            model=one,
            out=tmp_path / "m.aotair",
            inputs={"x": {"shape": ["n", 64], "dtype": "float16", "pad": "any"}},
            buckets={"n": [1, 8]},
            target={"device": node.kind},
            quantize={"experts": scheme},
            config=config,
            verify={"atol": 5e-1, "rtol": 5e-2},
        )
        safetensors.torch.save_file(two.state_dict(), tmp_path / "two.safetensors")
    # Kernels of the simulated NPU make tensors of their own, where torch has them by default.
    with torch.device("cpu"), aotair.load(path, device=node.kind, enable_output_clone=True) as model:
        packed = [op for _, op in packed_constants(model.program) if op == "npu::npu_grouped_matmul"]
        assert len(packed) == (2 if nz and scheme == "int8_dynamic" else 0)
        for original in (one, two):
            for rows in (6, 1):
                want = original(x[:rows]).float()
                got = model(x[:rows].to(node.device)).cpu().float()
                assert 0 < (got - want).norm() < 0.06 * want.norm()
            model.load_weights(tmp_path / "two.safetensors")
