"""Quantised linear layers on each device: every scheme that it has answers like the layers of floats, nearly."""

import pytest
import safetensors.torch
import torch
from nodes import Node

import aotair
from aotair.target.target import Target

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
