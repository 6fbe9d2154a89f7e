"""Latent attention whose queries and rows one op makes, of weights in NZ: the host's numbers on the device."""

from pathlib import Path

import blocks
import checkpoints
import pytest
import torch

import aotair


def test_decode_by_one_op_gives_the_hosts_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = blocks.prologs(monkeypatch)
    checkpoints.write_checkpoint(tmp_path / "w", checkpoints.seeded(config).to(torch.bfloat16))
    path = aotair.build(blocks.decoding(tmp_path / "w", weight_nz=True), tmp_path / "m.aotair")
    found = []
    for device in ("cpu", "npu"):
        with aotair.load(path, device=device, pack_weights=device == "npu", enable_output_clone=True) as served:
            read = [op for _, op in served._resident.packed]
            assert read.count("npu::npu_mla_prolog_v3") == (3 * config.num_hidden_layers if device == "npu" else 0)
            found.append(blocks.tokens_by_rows(served, [2, 1]))
    (logits, states), (others, theirs) = found
    assert all(map(torch.equal, logits, others)) and all(map(torch.equal, states, theirs))
