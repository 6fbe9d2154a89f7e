"""Small seeded models that the tests build, each for one thing that a program must get right."""

import torch
from torch import nn


class Encoder(nn.Module):
    """Embedding, attention with a padding mask, norms and a gated feed-forward block: a transformer in small."""

    def __init__(self, width: int = 16, heads: int = 2, words: int = 50):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(32, width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, seq = ids.shape
        x = self.words(ids) + self.places(torch.arange(seq))
        q, k, v = (
            part.view(batch, seq, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, dim=-1)
        )
        allowed = mask.bool()[:, None, None, :]
        attended = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, seq, -1))
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class Tied(nn.Module):
    """One weight under two names, and two weights with equal contents."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.b.weight = self.a.weight
        self.c = nn.Linear(4, 4, bias=False)
        self.c.load_state_dict(self.a.state_dict())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x) + self.b(x) * self.c(x)


class Derived(nn.Module):
    """Weights that are merged, scaled and normed before they are used, and one that is used as it is, too."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.rand(4) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lengths = self.second.weight.norm(dim=1, keepdim=True)
        rows = torch.cat([self.first.weight * self.scale, self.second.weight / lengths])
        both = nn.functional.linear(x, rows, torch.cat([self.first.bias, self.second.bias]))
        return both * self.scale.sum() + self.first(x).mean(-1, keepdim=True)


class Counter(nn.Module):
    """A buffer that the model mutates, read after it is written."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x * self.count


class Swap(nn.Module):
    """Two buffers that exchange their values: each new value is the other's old one."""

    def __init__(self):
        super().__init__()
        self.register_buffer("left", torch.tensor([1.0, 2.0]))
        self.register_buffer("right", torch.tensor([3.0, 4.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left = self.left.clone()
        self.left.copy_(self.right)
        self.right.copy_(left)
        return x + self.left - self.right


class Cache(nn.Module):
    """A cache that belongs to the caller and is written in place."""

    def forward(self, x: torch.Tensor, cache: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(1, position, x)
        return cache.sum(1)


class Structured(nn.Module):
    """Nested outputs, one of them twice, one of them nothing."""

    def forward(self, x: torch.Tensor):
        y = x * 2
        return {"a": y, "rest": (y.sum(-1), [y.flatten(1)]), "none": None, "again": y}


class Views(nn.Module):
    """Outputs that look at inputs, constants and one another; ops of many kinds and dtypes."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: torch.Tensor):
        first, second = x.chunk(2, dim=-1)
        joined = torch.cat([second, first, x[:, ::2]], dim=-1)
        large = joined > 0
        top = joined.topk(2)
        padded = nn.functional.pad(first, (1, 1), value=7.0)
        expanded = self.table[0].expand(x.shape[0], 4)
        return (
            x,
            self.table,
            x.transpose(0, 1),
            joined,
            large,
            top.values,
            top.indices,
            padded,
            expanded,
            torch.full_like(x, 3),
            torch.arange(x.shape[1], dtype=torch.int32),
            joined.double().cumsum(-1).to(torch.float16),
            torch.where(large, joined, torch.zeros(())),
            joined.masked_fill(~large, -1.0).softmax(-1),
        )


class Mean(nn.Module):
    """Mixes along the dimension that the recipe pads, so padding it is not neutral."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(1, keepdim=True)


class Halves(nn.Module):
    """An output whose size is an expression of the input's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :, 1::2] * 2


class Refused(nn.Module):
    """What cannot be built, by name."""

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind
        self.places = nn.Parameter(torch.randn(16, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "branch" and x.sum() > 0:
            return x
        if self.kind == "shape":
            return x[x > 0]
        if self.kind == "random":
            return x + torch.rand_like(x)
        if self.kind == "sizes":
            return x + self.places
        if self.kind == "write":
            x.add_(1)
        return x * 2


class HostOnly(nn.Module):
    """An op that torch has for the CPU and torch_npu does not have."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvalsh(x @ x.t()) + torch.special.airy_ai(x.sum(0))


class Streams(nn.Module):
    """The example of TorchAir's document about custom passes."""

    def forward(self, x: torch.Tensor):
        product = torch.mm(x, x)
        positive = torch.abs(product)
        return torch.add(positive, 1), torch.sub(x, product)


def two_streams(gm, example_inputs, config) -> None:
    """mm and abs on a stream of their own, and sub after them; that add uses abs without a wait is left to be found."""
    graph, air = gm.graph, torch.ops.air
    for node in graph.nodes:
        if node.target is torch.ops.aten.mm.default:
            with graph.inserting_before(node):
                graph.call_function(air.scope_enter.default, (["_user_stream_label"], ["stream_1"]))
        if node.target is torch.ops.aten.abs.default:
            with graph.inserting_after(node):
                record = graph.call_function(air.record.default)
            with graph.inserting_after(record):
                graph.call_function(air.scope_exit.default)
        if node.target is torch.ops.aten.sub.Tensor:
            with graph.inserting_before(node):
                graph.call_function(air.wait.default, ([record],))


class Branches(nn.Module):
    """Two long branches over a cache that both read, one of them writes, and their sum."""

    def forward(self, x: torch.Tensor, cache: torch.Tensor):
        left, right = x, x + cache
        for turn in range(4):
            left = (left @ left).tanh() + turn
            right = (right.t() @ right).sigmoid() * left
        cache.add_(left)
        return left + right, right.softmax(-1)


def a_stream_for_each_branch(gm, example_inputs, config) -> None:
    """Every second product, with what follows it, goes to one of three streams, without a single event."""
    graph, air = gm.graph, torch.ops.air
    products = [node for node in graph.nodes if node.target is torch.ops.aten.mm.default]
    for number, node in enumerate(products[::2]):
        with graph.inserting_before(node):
            graph.call_function(air.scope_enter.default, (["_user_stream_label"], [f"side_{number % 3}"]))
        with graph.inserting_after(node.next):
            graph.call_function(air.scope_exit.default)


class Joined(nn.Module):
    """Results that are put together along the first dimension."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.tanh(), x.sigmoid(), x.exp().sin()]).sum(0)


@torch.library.custom_op("aotairtest::accumulate", mutates_args={"total"})
def accumulate(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """An op of a user's own that writes into an argument, and returns something else."""
    total.add_(x)
    return x * 2


@accumulate.register_fake
def _accumulate_shape(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Accumulates(nn.Module):
    """A custom op that writes into a cache of the caller and into a state."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(3, 4))

    def forward(self, x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        y = torch.ops.aotairtest.accumulate(total, x)
        return torch.ops.aotairtest.accumulate(self.seen, y) + total


class WritesClones(nn.Module):
    """A custom op that writes into clones: of an input, a weight, a state and intermediates, each used again or not."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.ones(3, 4))
        self.weight = nn.Parameter(torch.full((3, 4), 0.5))

    def forward(self, x: torch.Tensor, total: torch.Tensor):
        accumulate, results = torch.ops.aotairtest.accumulate, []
        last, once = x * 3, x.sin()
        for source in (x, x, self.weight, self.weight, self.seen, total, last, last, once):
            y = source.clone()
            results.append(accumulate(y, x) + y)
        accumulate(total, self.weight.clone())
        return (*results, last)


class NpuBlock(nn.Module):
    """Ops of torch_npu as a model for Ascend calls them, with a cache that is written through one of them."""

    def __init__(self, width: int = 16):
        super().__init__()
        import aotair.ops.npu  # noqa: F401  (on a machine without torch_npu)

        self.gamma = nn.Parameter(torch.rand(width) + 0.5)
        self.up = nn.Linear(width, 2 * width)

    def forward(self, x: torch.Tensor, residual: torch.Tensor, cache: torch.Tensor, at: torch.Tensor):
        npu = torch.ops.npu
        y, _, total = npu.npu_add_rms_norm(x, residual, self.gamma)
        gated = npu.npu_swiglu(self.up(y))
        rstd, normed, joined = npu.npu_add_rms_norm_v2_functional(gated * 2, total + 1, self.gamma)
        quantised, scale = npu.npu_dynamic_quant(normed.half())
        npu.npu_scatter_nd_update_(cache, at, normed)
        return joined, rstd, quantised, scale, cache.sum(0)


class QuantBlock(nn.Module):
    """Norms as transformers writes them, a residual sum, linear layers, and a state that counts calls."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.before, self.after = (nn.Parameter(torch.rand(width) + 0.5) for _ in range(2))
        self.first, self.second, self.third = (nn.Linear(width, width) for _ in range(3))
        self.lm_head = nn.Linear(width, 8)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor, residual: torch.Tensor):
        self.calls.add_(1)
        total = x + residual
        y = self._norm(total, self.before)
        z = self._norm(self.third(self.first(y) * self.second(y)), self.after)
        return self.lm_head(z), total

    @staticmethod
    def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return weight * wide.to(x.dtype)


class DecoderLayer(nn.Module):
    """A layer as transformers writes it: RMS norms, grouped heads, rotary embedding, a cache, attention, gated MLP."""

    def __init__(self, width: int = 32, heads: int = 2, shared: int = 1, length: int = 8, batch: int = 4):
        super().__init__()
        self.heads, self.shared, self.size = heads, shared, width // heads
        self.before, self.after = (nn.Parameter(torch.rand(width) + 0.5) for _ in range(2))
        self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key, self.value = (nn.Linear(width, shared * self.size, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(batch, shared, length, self.size))

    def forward(self, x: torch.Tensor, residual: torch.Tensor, position: torch.Tensor):
        batch = x.shape[0]
        angle = position[:, None] * torch.exp2(-torch.arange(self.size // 2, device=x.device))
        cos, sin = (torch.cat([f(angle)] * 2, -1).to(x.dtype)[None, None] for f in (torch.cos, torch.sin))
        total = x + residual
        y = QuantBlock._norm(total, self.before)
        q, k, v = (self._split(layer(y), n) for layer, n in zip(self._layers(), (self.heads, self.shared, self.shared)))
        self.keys[:batch].index_copy_(2, position, self._rotated(k, cos, sin))
        self.values[:batch].index_copy_(2, position, v)
        seen = torch.arange(self.keys.shape[2], device=x.device) <= position[:, None]
        attended = nn.functional.scaled_dot_product_attention(
            self._rotated(q, cos, sin), self.keys[:batch], self.values[:batch], seen[None, None], enable_gqa=True
        )
        total = total + self.out(attended.transpose(1, 2).reshape(batch, 1, -1))
        y = QuantBlock._norm(total, self.after)
        return total + self.down(nn.functional.silu(self.gate(y)) * self.up(y))

    def _layers(self) -> tuple[nn.Linear, ...]:
        return self.query, self.key, self.value

    def _split(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], heads, self.size).transpose(1, 2)

    def _rotated(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin


class Reshapes(nn.Module):
    """The same copy made twice, each looked at in another way, one of them written over."""

    def forward(self, x: torch.Tensor):
        one, two = x.transpose(0, 1).reshape(-1), x.transpose(0, 1).reshape(-1)
        return one + 1, two, x.transpose(0, 1).reshape(2, -1) * 3


class Attended(nn.Module):
    """Attention whose result is reshaped, and used as it is too."""

    def forward(self, query: torch.Tensor, key: torch.Tensor):
        out = nn.functional.scaled_dot_product_attention(query, key, key).transpose(1, 2)
        return out.reshape(query.shape[0], query.shape[2], -1) + 1, out * 3, out


class Notebook(nn.Module):
    """Two methods over one buffer: one writes rows of it, the other compares with all of it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4, bias=False)
        self.register_buffer("pages", torch.zeros(8, 4))

    def write(self, x, rows):
        self.pages.index_copy_(0, rows, self.linear(x))
        return x + 1

    def read(self, query):
        return self.linear(query) @ self.pages.T


class Notes(nn.Module):
    """What some writers have written so far: of each a page of `length` rows, and what the last row was. After those of
    all writers there is a page that stays empty."""

    def __init__(self, writers: int = 4, length: int = 6, pages: str = "float32"):
        super().__init__()
        dtype = getattr(torch, pages)
        self.writers, self.length = writers, length
        self.register_buffer("pages", torch.zeros((writers + 1) * length, 4, dtype=dtype), persistent=False)
        self.register_buffer("last", torch.zeros(writers + 1, 4), persistent=False)

    def forward(self, x, at, slots):
        real = (slots < self.writers).unsqueeze(1)
        places = slots * self.length + at
        kept = self.pages.index_select(0, places)
        self.pages.index_copy_(0, places, torch.where(real, x.to(kept.dtype), kept))
        before = self.last.index_select(0, slots)
        moved = before * 0.5 + x
        self.last.index_copy_(0, slots, torch.where(real, moved, before))
        own = self.pages.view(-1, self.length, 4).index_select(0, slots).float()
        return own.sum(1) + moved


def forget_the_query(gm, example_inputs, config) -> None:
    """A pass that makes the reader's products with what it read, and not with the query."""
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target is torch.ops.aten.mm.default:
            node.update_arg(0, gm.graph.find_nodes(op="placeholder")[-1])


class PlainCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = torch.zeros(2, 3)

    def forward(self, x):
        self.cache.add_(x)
        return self.cache * 2


class _Holder:
    def __init__(self):
        self.rows = torch.zeros(2, 3)


class HeldCache(nn.Module):
    """As caches of transformers are held: by an object that is no module."""

    def __init__(self):
        super().__init__()
        self.holder = _Holder()

    def forward(self, x):
        self.holder.rows.index_copy_(0, torch.tensor([1]), x[:1])
        return self.holder.rows + x


class ListedCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.caches = [torch.zeros(2, 3)]

    def forward(self, x):
        self.caches[0][0] = x[0]
        return x * 2


class LateCache(HeldCache):
    """Made at the first call."""

    def __init__(self):
        super().__init__()
        self.holder.rows = None

    def forward(self, x):
        if self.holder.rows is None:
            self.holder.rows = torch.zeros(2, 3)
        self.holder.rows.copy_(x)
        return x * 2


class ReplacedCache(HeldCache):
    def forward(self, x):
        self.holder.rows = self.holder.rows + x
        return self.holder.rows * 2


class Training(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, 3))

    def forward(self, x):
        with torch.no_grad():
            self.weight.add_(x)
        return self.weight * 2


class LateConstant(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = None

    def forward(self, x):
        if self.table is None:
            self.table = torch.arange(3.0)
        return x + self.table


class SmallTable(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 2)

    def forward(self, ids):
        return self.table(ids)


class Buffers(nn.Module):
    """Buffers of integers and booleans, one that no checkpoint has, and a layer that nobody reads."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))
        self.unread = nn.Linear(2, 2)
        self.register_buffer("order", torch.tensor([1, 0, 3, 2]))
        self.register_buffer("allowed", torch.tensor([True, True, False, True]))
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0, 4.0]), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(self.allowed, (x * self.weight)[:, self.order], x) * self.scale


class Decode(torch.nn.Module):
    """Attention over the first keys of each row of a cache: as many as `lengths`, as `others`, and three."""

    def __init__(self, heads: int = 2, size: int = 8, layers: int = 3):
        super().__init__()
        width = heads * size
        self.heads, self.scale = heads, size**-0.5
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(layers))

    def forward(self, x, keys, lengths, others):
        for layer, list_ in zip(self.layers, (lengths, others, [3])):
            query = layer(x)
            found, _ = torch.ops.npu.npu_fused_infer_attention_score(
                query, keys, keys, actual_seq_lengths_kv=list_, num_heads=self.heads, scale=self.scale
            )
            x = x + found
        return x


class LongDecode(Decode):
    """The same, for more rows than two; fewer need no list."""

    def forward(self, x, keys, lengths, others):
        return super().forward(x, keys, lengths, others) if x.shape[0] > 2 else self.layers[0](x)


# Ops without a kernel on every device, which are made of others.
APART = {
    "pixel_shuffle": lambda x: nn.functional.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: nn.functional.pixel_unshuffle(x, 2),
    "instance_norm": nn.functional.instance_norm,
    "diag_embed": torch.diag_embed,
    "as_strided_scatter": lambda x: torch.as_strided_scatter(x * 2, x[0, 0, :2, :2], (2, 2), (2, 1)),
    "cumprod": lambda x: x.cumprod(-1),
    "heaviside": lambda x: x.heaviside(x),
}


class Apart(nn.Module):
    """One of them."""

    def __init__(self, name: str):
        super().__init__()
        self.op = APART[name]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.op(x)


class Normed(nn.Module):
    """Convolutions, a linear layer and an embedding, with norms and scales after them, all with random numbers."""

    def __init__(self, seed: int = 0, size: int = 6):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.words = nn.Embedding(50, size)
            self.wide = nn.Conv1d(size, 2 * size, 3, padding=1, bias=False)
            self.back = nn.ConvTranspose1d(2 * size, size, 3, padding=1, groups=2)
            self.norms = nn.ModuleList([nn.BatchNorm1d(2 * size), nn.BatchNorm1d(size)])
            self.out = nn.Linear(size, 4, bias=False)
            self.scale, self.shift = nn.Parameter(torch.rand(4) + 0.5), nn.Parameter(torch.randn(4))
            for tensor in self.norms.state_dict().values():
                if tensor.is_floating_point():
                    tensor.copy_(torch.rand(tensor.shape) + 0.2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = (self.words(ids) * 2.5).transpose(1, 2)
        x = self.norms[1](self.back(self.norms[0](self.wide(x)).relu()))
        return self.out(x.transpose(1, 2)) * self.scale + self.shift


class Shared(torch.nn.Module):
    """What ranks share out in each way there is: a table, a layer cut by outputs and one by inputs with a bias, one
    that is gathered, one that is given all inputs; and a state and a factor that each rank has whole."""

    def __init__(self, width: int = 16, tied: bool = False):
        super().__init__()
        self.embed = torch.nn.Embedding(24, width)
        self.up, self.down = torch.nn.Linear(width, 24), torch.nn.Linear(24, width)
        self.of_all = torch.nn.Linear(width, width)
        self.head = torch.nn.Linear(width, 24, bias=not tied)
        self.norm = torch.nn.Parameter(torch.rand(width) + 0.5)
        self.register_buffer("calls", torch.zeros(1))
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        x = x + self.down(torch.relu(self.up(x)))
        x = x + torch.tanh(self.of_all(x)) * self.norm
        self.calls.add_(1)
        return self.head(x) + self.calls


class DeepLayer(torch.nn.Module):
    """Two layers that feed each other, and a state that each call moves by a weight."""

    def __init__(self, number: int, width: int, scaled: bool = False):
        super().__init__()
        self.number, self.scaled = number, scaled
        self.norm = torch.nn.LayerNorm(width)
        self.up, self.down = torch.nn.Linear(width, 24), torch.nn.Linear(24, width)
        self.step = torch.nn.Parameter(torch.randn(width))
        self.register_buffer("seen", torch.zeros(1, width), persistent=False)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        self.seen.add_(self.step)
        weight = self.up.weight.double().float() * 2 if self.scaled else self.up.weight
        up = torch.nn.functional.linear(self.norm(x), weight, self.up.bias)
        return x + scale * self.down(torch.relu(up)) + 0.1 * self.seen


class Deep(torch.nn.Module):
    """Layers that are alike, behind some that are not; a table before and a head behind. `scaled`: with weights that
    are computed of others."""

    def __init__(self, layers: int = 4, odd: int = 0, width: int = 16, scaled: bool = False):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(24, width), torch.nn.Linear(width, 24)
        first = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh()) for _ in range(odd)]
        self.layers = torch.nn.ModuleList([*first, *(DeepLayer(n, width, scaled) for n in range(odd, layers))])
        self.odd = odd

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for number, layer in enumerate(self.layers):
            x = layer(x) if number < self.odd else layer(x, scale=0.5)
        return self.head(x)


class KnowsItsPlace(torch.nn.Module):
    """A model of two ranks, each of which has a buffer of its own that a table of the sizes follows from."""

    def __init__(self, mesh=None):
        super().__init__()
        self.mesh, rank = mesh, 0 if mesh is None else mesh.get_local_rank("tp")
        self.scale = torch.nn.Parameter(torch.rand(16))
        self.register_buffer("place", torch.full((1,), float(rank)), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.distributed import _functional_collectives as collectives

        rows = torch.arange(x.shape[0]).unsqueeze(1)
        if self.mesh is not None:
            rows = collectives.all_reduce(torch.sin(rows * self.place), "sum", (self.mesh, 0))
        else:
            rows = torch.sin(rows.float())
        return x * self.scale + rows


class SumsWhatHasGaps(torch.nn.Module):
    """A model whose ranks sum columns, turned matrices and every other number."""

    def __init__(self, mesh=None):
        super().__init__()
        self.mesh = mesh
        self.weight = torch.nn.Parameter(torch.rand(4, 16))
        if mesh is not None:
            self.weight = torch.nn.Parameter(self.weight.chunk(2, 0)[mesh.get_local_rank("tp")].clone())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        from torch.distributed import _functional_collectives as collectives

        if self.mesh is None:
            parts, say = self.weight.unsqueeze(1), lambda tensor: tensor
        else:
            parts, say = self.weight.unsqueeze(1), lambda one: collectives.all_reduce(one, "sum", (self.mesh, 0))
        y = (x * parts).sum(0)
        return say(y[:, 0]), say(y.t()) * 2, say(y[:, ::2]).sin()


class SharesItself(torch.nn.Module):
    """A model that calls functional collectives of torch itself: with a mesh it has one rank's parts."""

    def __init__(self, mesh=None, wrong: str = ""):
        super().__init__()
        ranks, rank = (1, 0) if mesh is None else (mesh.size(), mesh.get_local_rank("tp"))
        self.mesh, self.rank, self.wrong = mesh, rank, wrong
        made = torch.randn(8, 16) if wrong != "values" else torch.randn(8 // ranks, 16).repeat(ranks, 1) + rank
        self.up = torch.nn.Parameter(made.chunk(ranks)[rank].clone())
        self.down = torch.nn.Parameter(torch.randn(16, 8).chunk(ranks, 1)[rank].clone())
        self.both = torch.nn.Parameter(torch.randn(4, 16).view(2, 2, 16).chunk(ranks, 1)[rank].reshape(-1, 16).clone())
        self.norm = torch.nn.Parameter(torch.rand(16))
        if wrong == "zeros":
            self.fused = torch.nn.Parameter(torch.zeros(4 // ranks))
        self.register_buffer("place", torch.full((1,), float(rank)), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.distributed import _functional_collectives as collectives

        group, y = (self.mesh, 0), torch.relu(x @ self.up.T) @ self.down.T
        if self.wrong == "number":
            y = y + (self.rank + 1 if self.mesh is not None else 3)
        if self.mesh is not None:
            y = collectives.all_reduce(torch.where(self.place > 0, y + self.place, y + 1), "sum", group) - 2
        gate, value = (x @ self.both.T).chunk(2, -1)
        own = torch.sigmoid(gate) * value
        if self.mesh is not None:
            own = collectives.all_gather_tensor(own, own.dim() - 1, group)
            parts = collectives.all_gather_tensor(y.flatten(0, -2), 0, group)
            y = (
                collectives.reduce_scatter_tensor(parts, "avg" if self.wrong == "op" else "sum", 0, group).view_as(y)
                / 2
            )
        return y * self.norm + own.sum(-1, keepdim=True)


class MeetsInProducts(nn.Module):
    """Products of float16 after which ranks add up what they made, keep rows of that, and gather them for the next:
    with a mesh it has one rank's parts."""

    def __init__(self, mesh=None):
        super().__init__()
        ranks, rank = (1, 0) if mesh is None else (mesh.size(), mesh.get_local_rank("tp"))
        self.mesh = mesh
        up, down, head = (torch.randn(size) / 32 for size in ((512, 256), (256, 512), (256, 256)))
        self.up = nn.Parameter(up.chunk(ranks)[rank].clone())
        self.down = nn.Parameter(down.chunk(ranks, 1)[rank].clone())
        self.head, self.norm = nn.Parameter(head), nn.Parameter(torch.rand(256) + 0.5)
        self.half()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.distributed import _functional_collectives as collectives

        group, linear = (self.mesh, 0), nn.functional.linear
        y = linear(torch.relu(linear(x, self.up)), self.down)
        if self.mesh is not None:
            y = collectives.all_reduce(y, "sum", group)
        z = linear(torch.relu(linear(x + y, self.up)), self.down)
        if self.mesh is None:
            rows = z * self.norm
        else:
            rows = collectives.reduce_scatter_tensor(z, "sum", 0, group) * self.norm
            rows = collectives.all_gather_tensor(rows, 0, group)
        return linear(rows, self.head) + rows


class TwoLayers(nn.Module):
    """Linear layers from 64 to 96 and 32, of which the second has no bias."""

    def __init__(self, seed: int, dtype: torch.dtype):
        super().__init__()
        torch.manual_seed(seed)
        self.up, self.down = nn.Linear(64, 96), nn.Linear(96, 32, bias=False)
        self.to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


class Wide(torch.nn.Module):
    """A layer that ranks cut by outputs and one by inputs, large enough on four to be rounded to bfloat16."""

    def __init__(self, width: int = 256):
        super().__init__()
        self.up, self.down = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))
