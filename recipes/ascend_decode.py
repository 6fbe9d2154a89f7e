"""One decoding step of a small decoder written for Ascend NPUs: latent attention over paged caches, int8 products.

The lengths of the sequences are a list of the host, as `npu_fused_infer_attention_score` takes it. Each row of the
batch is one token of one sequence: `slots` is where its keys go (-1: nowhere), `tables` which blocks it has.
"""

import torch
from torch import Tensor, nn

from aotair.ops import air as _scopes  # noqa: F401  (defines scope_enter and scope_exit)
from aotair.ops import npu as _ops  # noqa: F401  (defines the ops of torch_npu where that is absent)

npu, air = torch.ops.npu, torch.ops.air
HALF = 5  # what npu_quant_matmul calls float16

BLOCKS, BLOCK_SIZE, TABLE = 16, 16, 4  # blocks of the caches, tokens of a block, blocks of a sequence at most
HIDDEN, HEADS, RANK, ROPE = 64, 4, 32, 16


class Int8Linear(nn.Module):
    """A product of int8 rows and int8 weights, with a scale for each."""

    def __init__(self, rows: int, columns: int):
        super().__init__()
        weight = torch.randn(columns, rows) / columns**0.5
        scale = weight.abs().amax(0) / 127
        self.register_buffer("weight", (weight / scale).round().to(torch.int8))
        self.scale = nn.Parameter(scale, requires_grad=False)

    def forward(self, rows: Tensor, scales: Tensor) -> Tensor:
        return npu.npu_quant_matmul(rows, self.weight, self.scale, pertoken_scale=scales, output_dtype=HALF)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.Parameter(torch.ones(HIDDEN))
        self.latent_norm = nn.Parameter(torch.ones(RANK))
        self.query = Int8Linear(HEADS * (RANK + ROPE), HIDDEN)
        self.latent = Int8Linear(RANK + ROPE, HIDDEN)
        self.gate = nn.Linear(HIDDEN, HEADS * RANK, bias=False)
        self.out = Int8Linear(HIDDEN, HEADS * RANK)

    def forward(self, x, residual, cos, sin, slots, tables, lengths, rope_cache, latent_cache):
        batch = x.shape[0]
        normed, _, residual = npu.npu_add_rms_norm(x, residual, self.norm)
        air.scope_enter(["_user_stream_label"], ["gate"])  # beside the attention: nobody waits for it before the end
        gate = nn.functional.silu(self.gate(normed))
        air.scope_exit()
        rows, scales = npu.npu_dynamic_quant(normed)
        query = self.query(rows, scales).view(batch, HEADS, 1, RANK + ROPE)
        latent = self.latent(rows, scales).view(batch, 1, 1, RANK + ROPE)
        npu.npu_kv_rmsnorm_rope_cache_v2(
            latent, self.latent_norm, cos, sin, slots, rope_cache, latent_cache, cache_mode="PA_BNSD"
        )
        keys = latent_cache.view(BLOCKS, BLOCK_SIZE, RANK)
        found, _ = npu.npu_fused_infer_attention_score(
            query[..., :RANK].contiguous(), keys, keys, query_rope=query[..., RANK:].contiguous(),
            key_rope=rope_cache.view(BLOCKS, BLOCK_SIZE, ROPE), actual_seq_lengths_kv=lengths, block_table=tables,
            block_size=BLOCK_SIZE, num_heads=HEADS, num_key_value_heads=1, input_layout="BNSD",
            scale=(RANK + ROPE) ** -0.5,
        )  # fmt: skip
        rows, scales = npu.npu_dynamic_quant(found.view(batch, HEADS * RANK) * gate)
        return self.out(rows, scales), residual


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])
        angles = torch.arange(TABLE * BLOCK_SIZE)[:, None] * 10000.0 ** (-torch.arange(0, ROPE, 2) / ROPE)
        angles = torch.cat((angles, angles), -1)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x, positions, slots, tables, lengths, rope_0, latent_0, rope_1, latent_1):
        cos, sin = (table[positions].view(-1, 1, 1, ROPE) for table in (self.cos, self.sin))
        residual = torch.zeros_like(x)
        for layer, caches in zip(self.layers, ((rope_0, latent_0), (rope_1, latent_1))):
            x, residual = layer(x, residual, cos, sin, slots, tables, lengths, *caches)
        return x + residual


def build() -> Decoder:
    """In float16, but for the scales."""
    model = Decoder().half()
    for module in model.modules():
        if isinstance(module, Int8Linear):
            module.scale.data = module.scale.data.float()
    return model
