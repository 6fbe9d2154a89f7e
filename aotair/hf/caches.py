"""What transformers' layers keep of the tokens before, as rows of buffers that every call shares.

A layer of attention keeps keys and values, one row of `length` tokens for each sequence; a recurrent or convolutional
layer keeps states, one row for each sequence. The last row is nobody's: padding points to it, and nothing is written.
"""

import inspect
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn
from transformers import cache_utils

from ..errors import UnsupportedError
from . import int8_rows


@dataclass(frozen=True)
class Call:
    """One call: `table` (batch, columns) are the blocks of each sequence, one after the other, each of `block` tokens,
    and `spare` is the block that padding points to; `starts` (batch,) the position of each sequence's first token,
    which lies before it where tokens pad on the left; `real` (batch, tokens) says which tokens are no padding. A
    `fresh` call begins its sequences: what the blocks hold is not read. `few`: a sequence has few tokens in this call,
    fewer than are worth to expand what the cache keeps."""

    table: torch.Tensor
    starts: torch.Tensor
    real: torch.Tensor
    spare: int
    block: int
    fresh: bool
    few: bool = False

    @property
    def length(self) -> int:
        """Of a sequence at the most."""
        return self.table.shape[1] * self.block

    @property
    def slots(self) -> torch.Tensor:
        """The only block of each sequence, (batch,), which is its row of what has one for each sequence."""
        assert self.table.shape[1] == 1, "recurrent layers have no blocks: the task refuses them"
        return self.table[:, 0]

    @cached_property
    def positions(self) -> torch.Tensor:
        """Of each token in its sequence, (batch, tokens); those of padding are legal ones."""
        return (self.starts[:, None] + torch.arange(self.real.shape[1], device=self.starts.device)).clamp(min=0)

    @cached_property
    def _blocks(self) -> torch.Tensor:
        """The block of each token, (batch, tokens)."""
        columns = self.table.shape[1]
        if columns == 1:
            return self.table
        return self.table.gather(1, torch.div(self.positions, self.block, rounding_mode="floor").clamp(max=columns - 1))

    @cached_property
    def written(self) -> torch.Tensor:
        """Which tokens have a place in a cache, (batch * tokens, 1)."""
        return (self.real & (self._blocks < self.spare) & (self.positions < self.length)).reshape(-1, 1)

    @cached_property
    def places(self) -> torch.Tensor:
        """Where each token's key and value go, in rows of tokens (batch * tokens,); others into the spare block."""
        within = self.positions if self.table.shape[1] == 1 else self.positions.remainder(self.block)
        places = self._blocks * self.block + within
        return torch.where(self.written[:, 0], places.reshape(-1), self.spare * self.block)

    @cached_property
    def lengths(self) -> torch.Tensor:
        """How many tokens of each sequence a call may look at, (batch,)."""
        return self.starts + self.real.shape[1]

    def seen(self) -> torch.Tensor:
        """Which of the columns that a layer attends to are tokens, as ones, (batch, columns): those of a fresh call, or
        of whole rows those up to the call's last column."""
        if self.fresh:
            return self.real.to(torch.int64)
        columns = torch.arange(self.length, device=self.starts.device)
        return (columns < self.lengths[:, None]).to(torch.int64)


@dataclass(frozen=True)
class Kept:
    """What a model's layers keep, found by trying it: for each layer the names of its buffers. `heads`: of keys and
    values, by name. `int8`: whether these are whole numbers, each buffer with one of scales beside it."""

    attention: dict[int, tuple[str, str]]
    states: dict[int, dict[tuple[str, int], str]]
    sliding: frozenset[int]
    layers: int
    heads: dict[str, int]
    int8: bool = False

    def names(self) -> list[str]:
        """The buffers, layer by layer."""
        pairs = [name for both in self.attention.values() for name in both]
        scales = [scales_of(name) for name in pairs] if self.int8 else []
        return pairs + scales + [name for states in self.states.values() for name in states.values()]

    def of(self, layers: Collection[int]) -> "Kept":
        """What some of the layers keep, which have the numbers that they had."""
        attention = {number: names for number, names in self.attention.items() if number in layers}
        return replace(
            self,
            attention=attention,
            states={number: names for number, names in self.states.items() if number in layers},
            sliding=self.sliding & {*layers},
            heads={name: self.heads[name] for both in attention.values() for name in both},
        )

    def form(self, layers: Sequence[int]) -> tuple[object, ...]:
        """What kinds of things these layers keep, one layer after the other."""
        return tuple((n in self.attention, tuple(self.states.get(n, ())), n in self.sliding) for n in layers)


def scales_of(name: str) -> str:
    """The buffer with the scales of a buffer of keys or values."""
    return f"{name}_scales"


def keep(owner: nn.Module, model: Any, ids: torch.Tensor, rows: int, length: int) -> Kept:
    """Give `owner` the buffers that the layers of `model` need, found in a call with the tokens `ids` (1, tokens)."""
    cache = cache_utils.DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=ids, use_cache=True, **{cache_argument(model): cache})
    attention: dict[int, tuple[str, str]] = {}
    states: dict[int, dict[tuple[str, int], str]] = {}
    heads: dict[str, int] = {}
    for number, layer in enumerate(cache.layers):
        if getattr(layer, "keys", None) is not None:
            attention[number] = (f"keys{number}", f"values{number}")
            for name, kept in zip(attention[number], (layer.keys, layer.values), strict=True):
                shape = (rows * length, kept.shape[1] * kept.shape[3])
                owner.register_buffer(name, torch.zeros(shape, dtype=kept.dtype), persistent=False)
                heads[name] = kept.shape[1]
        for kind in ("conv", "recurrent"):
            for index, state in getattr(layer, f"{kind}_states", {}).items():
                if state is not None:
                    name = states.setdefault(number, {})[kind, index] = f"{kind}{number}_{index}"
                    shape = (rows, *state.shape[1:])
                    owner.register_buffer(name, torch.zeros(shape, dtype=state.dtype), persistent=False)
    sliding = frozenset(number for number, slides in enumerate(cache.is_sliding) if slides)
    return Kept(attention, states, sliding, len(cache.layers), heads)


def in_int8(owner: nn.Module, kept: Kept) -> Kept:
    """Let `owner` keep keys and values in whole numbers, a scale for each head of a token, instead of as they are."""
    for name, heads in kept.heads.items():
        rows = owner.get_buffer(name)
        owner.register_buffer(name, torch.zeros(rows.shape, dtype=torch.int8), persistent=False)
        scales = torch.zeros((rows.shape[0], heads), dtype=torch.float32)
        owner.register_buffer(scales_of(name), scales, persistent=False)
    return replace(kept, int8=True)


def cache_argument(model: Any) -> str:
    """What the model's `forward` calls its cache: transformers 5.24 has one name for all, earlier ones had two. Raises
    UnsupportedError where it takes none."""
    takes = inspect.signature(model.forward).parameters
    for name in ("cache", "past_key_values", "cache_params"):
        if name in takes:
            return name
    raise UnsupportedError(
        f"{type(model).__name__} takes no cache",
        where="transformers' forward",
        expected="an argument cache, past_key_values or cache_params",
        got=", ".join(takes),
        fix="this architecture needs a wrapper of its own: write it as a factory (model.factory)",
    )


class Rows(cache_utils.Cache):
    """The buffers of `owner`, for one call."""

    is_compileable = False

    def __init__(self, owner: nn.Module, kept: Kept, call: Call):
        layers: list[object] = []
        for number in range(kept.layers):
            states = {key: owner.get_buffer(name) for key, name in kept.states.get(number, {}).items()}
            names = kept.attention.get(number, ())
            buffers = [owner.get_buffer(name) for name in names]
            scales = [owner.get_buffer(scales_of(name)) for name in names] if kept.int8 else []
            sliding = number in kept.sliding
            if buffers and states:
                layers.append(_BothLayer(call, buffers, scales, sliding, states))
            elif buffers:
                layers.append(AttentionLayer(call, buffers, scales, sliding))
            else:
                layers.append(_StateLayer(call, states) if states else cache_utils.DummyLayer())
        super().__init__(layers=layers)

    def layer(self, keys: torch.Tensor, values: torch.Tensor) -> "AttentionLayer | None":
        """The layer that gave these keys and values; None where something else made them."""
        for layer in self.layers:
            if (
                isinstance(layer, AttentionLayer)
                and layer.given
                and layer.given[0] is keys
                and layer.given[1] is values
            ):
                return layer
        return None

    def store(self) -> None:
        """Write the states, as the call left them, into their rows. Keys and values are there already."""
        for layer in self.layers:
            if isinstance(layer, _StateLayer):
                layer.store()


class AttentionLayer(cache_utils.CacheLayerMixin):
    """Keys and values, each ((slots + 1) * length, heads * width); where they are int8, `scales` of each
    ((slots + 1) * length, heads)."""

    def __init__(self, call: Call, buffers: Sequence[torch.Tensor], scales: Sequence[torch.Tensor], sliding: bool):
        super().__init__()
        self.is_initialized, self.is_sliding = True, sliding
        self._call, self.buffers, self.scales = call, buffers, scales
        self.given: tuple[torch.Tensor, ...] = ()

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write new rows (batch, heads, tokens, width) to their places; gives what there is to attend to: the new rows
        of a fresh call, which are not rounded, else whole rows of the cache (batch, heads, length, width)."""
        news = (key_states, value_states)
        if self.scales:
            keys, values = (self._rounded(*three) for three in zip(self.buffers, self.scales, news, strict=True))
        else:
            keys, values = (self._plain(*both) for both in zip(self.buffers, news, strict=True))
        self.given = (keys, values)
        return keys, values

    def _plain(self, cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        self._write(cache, _by_token(new))
        if self._call.fresh:
            return new
        return self._read(cache, new.shape[1]).transpose(1, 2)

    def _rounded(self, cache: torch.Tensor, scales: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        numbers, factors = int8_rows.rounded(_by_token(new))
        self._write(cache, numbers)
        self._write(scales, factors)
        if self._call.fresh:
            return new
        heads = new.shape[1]
        read = int8_rows.widened(self._read(cache, heads), self._read(scales, heads)[..., 0], new.dtype)
        return read.transpose(1, 2)

    def _write(self, cache: torch.Tensor, rows: torch.Tensor) -> None:
        """Rows (tokens, …) to their places. What pads a call writes what is there already: a cache holds nothing but
        real tokens."""
        call, rows = self._call, rows.flatten(1)
        cache.index_copy_(0, call.places, torch.where(call.written, rows, cache.index_select(0, call.places)))

    def _read(self, cache: torch.Tensor, heads: int) -> torch.Tensor:
        """Whole rows, (batch, length, heads, width)."""
        call, width = self._call, cache.shape[1]
        kept = cache.view(-1, call.block * width).index_select(0, call.table.reshape(-1))
        return kept.view(call.table.shape[0], call.length, heads, width // heads)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return (query_length if self._call.fresh else self._call.length), 0

    def get_seq_length(self) -> int | torch.Tensor:
        """What masks call the offset of the first query: for a fresh call its columns are its positions."""
        return 0 if self._call.fresh else self._call.starts

    def get_max_length(self) -> int:
        return self._call.length

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """The buffers are there."""


class _StateLayer(cache_utils.LinearAttentionCacheLayerMixin):
    """Convolutional and recurrent states, each (slots + 1, …)."""

    def __init__(self, call: Call, states: dict[tuple[str, int], torch.Tensor]):
        super().__init__(number_of_states=1 + max(index for _, index in states))
        self._of, self._states = call, states
        for (kind, index), buffer in states.items():
            self.has_previous_state[index] = not call.fresh
            if not call.fresh:
                getattr(self, f"{kind}_states")[index] = buffer.index_select(0, call.slots)

    def lazy_initialization(self, *_: object, **__: object) -> None:
        """The buffers are there."""

    def update_conv_state(self, conv_states: torch.Tensor, state_idx: int = 0, **_: object) -> torch.Tensor:
        """New columns (batch, channels, tokens): gives them behind the kept ones, or behind zeros where a fresh call
        has fewer than are kept."""
        kept = self._states["conv", state_idx].shape[-1]
        if self.has_previous_state[state_idx]:
            conv_states = torch.cat([self.conv_states[state_idx], conv_states], dim=-1)
            self.conv_states[state_idx] = conv_states[..., -kept:]
            return conv_states
        self.has_previous_state[state_idx] = True
        self.conv_states[state_idx] = nn.functional.pad(conv_states, (kept, 0))[..., -kept:]
        if conv_states.shape[-1] >= kept:
            return conv_states
        kept_columns: torch.Tensor = self.conv_states[state_idx]
        return kept_columns

    def update_recurrent_state(self, recurrent_states: torch.Tensor, state_idx: int = 0, **_: object) -> torch.Tensor:
        self.recurrent_states[state_idx] = recurrent_states
        return recurrent_states

    def store(self) -> None:
        """Write each state into its row; those of padding stay what they are."""
        slots = self._of.slots
        for (kind, index), buffer in self._states.items():
            new = getattr(self, f"{kind}_states")[index]
            real = (slots < self._of.spare).view(-1, *(1 for _ in new.shape[1:]))
            buffer.index_copy_(0, slots, torch.where(real, new.to(buffer.dtype), buffer.index_select(0, slots)))


class _BothLayer(_StateLayer, AttentionLayer):
    """A layer with attention and states beside each other."""

    def __init__(
        self,
        call: Call,
        buffers: Sequence[torch.Tensor],
        scales: Sequence[torch.Tensor],
        sliding: bool,
        states: dict[tuple[str, int], torch.Tensor],
    ):
        AttentionLayer.__init__(self, call, buffers, scales, sliding)
        _StateLayer.__init__(self, call, states)
        self.is_sliding = sliding


def _by_token(new: torch.Tensor) -> torch.Tensor:
    """(batch, heads, tokens, width) as (batch * tokens, heads, width)."""
    batch, heads, tokens, width = new.shape
    return new.transpose(1, 2).reshape(batch * tokens, heads, width)
