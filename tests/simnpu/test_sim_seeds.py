"""Does a handle of `torch.npu.graph_pool_handle()` stand for a pool, as TorchAir's documents use it?"""

import torch
from cases import RECIPES

import aotair


def test_models_with_one_handle_share_a_pool(tmp_path):
    path = aotair.build(RECIPES["linear"] | {"target": {"device": "npu"}}, tmp_path / "a.aotair")
    handle = torch.npu.graph_pool_handle()
    first, second = (aotair.load(path, pool=handle) for _ in "ab")
    apart = aotair.load(path, pool=torch.npu.graph_pool_handle())
    x = torch.randn(4, 4)
    want = aotair.load(path, device="cpu")(x).clone()
    outputs = [model(x.npu()) for model in (first, second, apart)]
    for got in outputs:
        torch.testing.assert_close(got.cpu(), want)
    places = [got.data_ptr() for got in outputs]
    assert places[0] == places[1] != places[2]
