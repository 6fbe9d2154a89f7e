"""Models that torch shares out (DTensor): each factory takes a mesh, and without one makes the whole model."""

import os

import torch
from torch import nn


class SharedByTorch(nn.Module):
    """A block of a language model over ids below 48, whose weights torch's `parallelize_module` shares out."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(48, 16), nn.Linear(16, 48, bias=False)
        self.norm, self.last = nn.LayerNorm(16), nn.RMSNorm(16)
        self.query, self.key, self.value = nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(16, 32)
        self.out, self.up, self.down = nn.Linear(32, 16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, ids):
        x = self.embed(ids)
        rows = self.norm(x)
        heads = (layer(rows).unflatten(-1, (-1, 8)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        made = nn.functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(made)
        return self.head(x + self.down(nn.functional.silu(self.up(self.last(x)))))


def shared_by_torch(mesh=None, sequence: bool = False):
    """With `sequence`, what lies between the layers is cut along the sequence."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor import parallel as tp

    model = SharedByTorch()
    if mesh is None:
        return model
    between = Shard(1) if sequence else Replicate()
    columns, rows = tp.ColwiseParallel(input_layouts=between), tp.RowwiseParallel(output_layouts=between)
    plan = dict.fromkeys(("query", "key", "value", "up"), columns) | {"out": rows, "down": rows}
    plan["embed"] = tp.RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
    plan["head"] = tp.ColwiseParallel(input_layouts=between, output_layouts=Replicate())
    if sequence:
        plan |= {"norm": tp.SequenceParallel(), "last": tp.SequenceParallel()}
    return tp.parallelize_module(model, mesh["tp"], plan)


class TwoSteps(nn.Module):
    """Linear layers from 16 to 32 and back, of which a rank may do something of its own."""

    def __init__(self, mesh=None, does: str = "", inner: int = 32):
        super().__init__()
        self.up, self.down = nn.Linear(16, inner), nn.Linear(inner, 16)
        self.does, self.rank = does, None if mesh is None else mesh.get_local_rank("tp")

    def forward(self, x):
        y = self.down(torch.relu(self.up(x)))
        if self.does == "more" and self.rank == 1:
            return y + 1
        return y * (self.rank + 2.0) if self.does == "its number" and self.rank is not None else y

    def score(self, x, *, weight):
        return {"score": self.down(torch.relu(self.up(x))) * weight}


def two_steps(mesh=None, does: str = "", inner: int = 32):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor import parallel as tp

    model = TwoSteps(mesh, does, inner)
    if mesh is None:
        return model
    if does == "nothing":
        return model
    if does == "ends":
        raise SystemExit(3)
    if does == "dies":
        os._exit(3)
    if does == "prepares":
        given = tp.PrepareModuleInput(
            input_layouts=Replicate(), desired_input_layouts=Replicate(), use_local_output=True
        )
        tp.parallelize_module(model, mesh["tp"], given)
    if does == "gathers":
        return fully_shard(model, mesh=mesh["tp"])
    return tp.parallelize_module(model, mesh["tp"], {"up": tp.ColwiseParallel(), "down": tp.RowwiseParallel()})


class TiedWords(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(48, 16), nn.Linear(16, 48, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.embed(ids))


def tied_by_torch(mesh=None):
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor import parallel as tp

    plan = {
        "embed": tp.RowwiseParallel(input_layouts=Replicate()),
        "head": tp.ColwiseParallel(output_layouts=Replicate()),
    }
    return TiedWords() if mesh is None else tp.parallelize_module(TiedWords(), mesh["tp"], plan)


def cut_twice(mesh=None):
    """Two steps as one shared tensor after the other, the first weight cut along both axes of the mesh."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor

    model = TwoSteps()
    if mesh is None:
        return model
    placed = {"up": [Shard(0), Shard(0)], "down.weight": [Replicate(), Shard(1)]}

    def share_out(name, module, mesh):
        for own, tensor in list(module.named_parameters(recurse=False)):
            how = placed.get(name) or placed.get(f"{name}.{own}") or [Replicate(), Replicate()]
            module.register_parameter(own, nn.Parameter(distribute_tensor(tensor, mesh, how)))

    def take(module, inputs, mesh):
        return tuple(DTensor.from_local(x, mesh, [Replicate(), Replicate()], run_check=False) for x in inputs)

    return distribute_module(model, mesh, share_out, take, lambda module, made, mesh: made.full_tensor())


class CachedByTorch(nn.Module):
    """Attention of one token over a cache of sixteen, which a rank holds some heads of."""

    def __init__(self, heads: int = 4):
        super().__init__()
        self.query, self.key, self.value = nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(16, 32)
        self.out = nn.Linear(32, 16)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(2, heads, 16, 8))

    def forward(self, x, position):
        q, k, v = (layer(x).view(2, 1, -1, 8).transpose(1, 2) for layer in (self.query, self.key, self.value))
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        mask = (torch.arange(16) <= position)[None, None, None]
        made = nn.functional.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        return self.out(made.transpose(1, 2).flatten(2))


def cached_by_torch(mesh=None):
    from torch.distributed.tensor import parallel as tp

    if mesh is None:
        return CachedByTorch()
    model = CachedByTorch(4 // mesh["tp"].size())
    plan = dict.fromkeys(("query", "key", "value"), tp.ColwiseParallel()) | {"out": tp.RowwiseParallel()}
    return tp.parallelize_module(model, mesh["tp"], plan)
