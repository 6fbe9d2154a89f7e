"""Any of transformers' decoders as methods over one set of buffers: prefill, decode, extend and verify."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from aotair_runtime.format.schema import Shard

from ..errors import UnsupportedError
from ..model.moved import Moved
from ..parallel.split import Part
from . import int8_rows
from .attention import Reading, gathered, in_place, over_blocks, reading
from .caches import Call, Rows, cache_argument, in_int8, keep
from .masks import masks_by_sequence
from .settle import settle
from .walk import through_the_cache

_TRIED = 64  # random tokens


class Decoder(nn.Module):
    """`blocks` of `block` tokens each, and one more that padding points to (number `blocks`); a sequence has `columns`
    of them. `in_place`: attention reads the cache where it lies, by ops of the CPU (`air::paged_attention`); `nz`:
    kernels of NPUs may read weights in that format.

    What the model's layers keep are buffers: state that all methods share. Each method gives logits (batch, …,
    vocabulary), or the likeliest tokens with `greedy`.
    """

    def __init__(self, model: Any, blocks: int, block: int, columns: int, greedy: bool, in_place: bool, nz: bool):
        super().__init__()
        self.model, self.blocks, self.block, self.columns = model, blocks, block, columns
        self.greedy, self._in_place, self._nz = greedy, in_place, nz
        settle(model, self.length)
        self._kept = keep(self, model, torch.zeros(1, 2, dtype=torch.int64), blocks + 1, block)
        self._takes = frozenset(inspect.signature(model.forward).parameters)
        self._cache = cache_argument(model)

    def split_states(self, parts: Mapping[str, Part]) -> dict[str, Shard]:
        """How the buffers are cut where the model's layers were, found as they were: by trying it."""
        owner = nn.Module()
        kept = keep(owner, self.model, torch.zeros(1, 2, dtype=torch.int64), self.blocks + 1, self.block)
        kept = in_int8(owner, kept) if self._kept.int8 else kept
        axes = {part.shard.axis for name, part in parts.items() if name.rpartition(".")[2] == "weight"}
        found = {}
        for name in kept.names():
            mine, theirs = owner.get_buffer(name).shape, self.get_buffer(name).shape
            cut = [dim for dim, (one, other) in enumerate(zip(mine, theirs)) if one != other]
            if not cut:
                continue
            if len(cut) > 1 or len(axes) > 1:
                raise UnsupportedError(
                    f"mesh: which axis shares out the cache {name} cannot be seen",
                    expected="one axis for all layers that are cut by their widths",
                    got=f"{list(theirs)} in all, {list(mine)} on a rank",
                    fix="give the patterns of parallel one axis: COLWISE@tp",
                )
            found[name] = Shard(min(axes), cut[0], theirs[cut[0]] // mine[cut[0]])
        return found

    def keep_first_stage(self, stages: Sequence[range]) -> dict[str, tuple[str, ...]]:
        """Keep what the layers of the first stage keep, and those of none; gives, by the buffer that is left, those of
        all stages. Raises UnsupportedError where stages keep different things."""
        each = [self._kept.of(layers) for layers in stages]
        if len({one.form(layers) for one, layers in zip(each, stages, strict=True)}) > 1:
            raise UnsupportedError(
                f"mesh: the layers do not keep the same in each of {len(stages)} stages",
                where=type(self.model).__name__,
                expected="windows, states, keys and values in the same places of every stage",
                fix="choose another number of stages (pp), or share out widths (tp)",
            )
        found = {names[0]: names for names in zip(*(one.names() for one in each), strict=True)}
        gone = {name for names in found.values() for name in names[1:]}
        for name in gone:
            delattr(self, name)
        others = {number for layers in stages[1:] for number in layers}
        self._kept = self._kept.of([number for number in range(self._kept.layers) if number not in others])
        return found

    @property
    def length(self) -> int:
        """Tokens of a sequence at the most."""
        return self.columns * self.block

    @property
    def config(self) -> Any:
        """transformers' own, of the model."""
        return self.model.config

    @property
    def recurrent(self) -> bool:
        """Whether a layer keeps states, in which no token can be masked later."""
        return bool(self._kept.states)

    @property
    def attends(self) -> bool:
        """Whether a layer keeps keys and values."""
        return bool(self._kept.attention)

    def rows(self) -> list[Tensor]:
        """The buffers of the cache."""
        return [self.get_buffer(name) for name in self._kept.names()]

    def quantize_cache(self) -> int:
        """Keep keys and values in int8 from now on, with a scale for each head of a token; gives of how many layers.
        Recurrent and convolutional states stay as they are."""
        self._kept = in_int8(self, self._kept)
        return len(self._kept.attention)

    def tried(self, texts: Sequence[Tensor]) -> tuple[list[Tensor], dict[str, float]]:
        """The logits of the last tokens of each text, (1, tokens, vocabulary), or of random tokens where there is none;
        and for each buffer of keys or values that is not rounded yet, how far int8 moves what these leave in it, the
        norm of the differences over the norm. A text (tokens,) is one that `through_the_cache` takes."""
        logits, moved = [], {} if self._kept.int8 else {name: Moved() for name in self._kept.heads}
        for text in texts or [self._random()]:
            logits.append(through_the_cache(self, [text[: self.length]]))
            for name, one in moved.items():
                rows = self.get_buffer(name)
                written = rows[rows.any(1)].unflatten(1, (self._kept.heads[name], -1))
                one.see(written, int8_rows.widened(*int8_rows.rounded(written), torch.float64))
            self.clear()
        return logits, {name: one.relative for name, one in moved.items()}

    def _random(self) -> Tensor:
        vocabulary = self.config.get_text_config().vocab_size
        generator = torch.Generator().manual_seed(0)
        return torch.randint(vocabulary, (min(_TRIED, self.length),), generator=generator)

    def clear(self) -> None:
        """Forget all sequences."""
        for buffer in self.rows():
            buffer.zero_()

    def places(self, count: int) -> Tensor:
        """What the methods take to say where `count` sequences lie, all apart."""
        raise NotImplementedError

    def _prefill(self, ids: Tensor, mask: Tensor, table: Tensor) -> Tensor:
        ids, starts, real = _to_the_right(ids, mask.sum(1))
        return self._answer(ids, Call(table, starts, real, self.blocks, self.block, fresh=True), 1)[:, -1]

    def _decode(self, ids: Tensor, positions: Tensor, table: Tensor, lengths: Sequence[int] | None = None) -> Tensor:
        real = torch.ones_like(ids[:, None], dtype=torch.bool)
        call = Call(table, positions, real, self.blocks, self.block, fresh=False, few=True)
        return self._answer(ids[:, None], call, 1, lengths)[:, -1]

    def _extend(self, ids: Tensor, mask: Tensor, positions: Tensor, table: Tensor) -> Tensor:
        self._refuse_recurrent()
        ids, shift, real = _to_the_right(ids, mask.sum(1))
        call = Call(table, positions + shift, real, self.blocks, self.block, fresh=False)
        return self._answer(ids, call, 1)[:, -1]

    def _verify(self, ids: Tensor, mask: Tensor, positions: Tensor, table: Tensor) -> Tensor:
        self._refuse_recurrent()
        call = Call(table, positions, mask > 0, self.blocks, self.block, fresh=False, few=True)
        return self._answer(ids, call, 0)

    def _refuse_recurrent(self) -> None:
        if self.recurrent:
            raise UnsupportedError(
                "the model has recurrent layers, whose states cannot be entered where a call pads",
                where=type(self.model).__name__,
                expected="the entry points prefill and decode",
                fix="remove extend and verify from entry_points",
            )

    def _answer(self, ids: Tensor, call: Call, last: int, lengths: Sequence[int] | None = None) -> Tensor:
        """Logits of the `last` columns, of all where that is 0."""
        rows = Rows(self, self._kept, call)
        reads = call.fresh or self._kept.attention  # recurrent layers are told of nothing but padding
        given = {
            "input_ids": ids,
            "attention_mask": call.seen() if reads else None,
            "position_ids": call.positions,
            "use_cache": True,
            "logits_to_keep": last,
            self._cache: rows,
        }
        with masks_by_sequence(), reading(self.model, rows, call, self._by(call, lengths)):
            answer = self.model(**{name: value for name, value in given.items() if name in self._takes})
        rows.store()
        logits: Tensor = answer.logits[:, -last:]
        return logits.argmax(-1) if self.greedy else logits

    def _by(self, call: Call, lengths: Sequence[int] | None) -> Reading:
        if lengths is not None:
            return over_blocks(call, lengths, self._nz)
        return in_place(call) if self._in_place else gathered()


class LanguageModel(Decoder):
    """`slots` rows of `length` tokens, one for each sequence, and one more row that padding points to (slot number
    `slots`)."""

    def __init__(self, model: Any, slots: int, length: int, greedy: bool = False, in_place: bool = False):
        super().__init__(model, slots, length, 1, greedy, in_place, nz=False)

    def places(self, count: int) -> Tensor:
        return torch.arange(count).flip(0)

    def prefill(self, input_ids: Tensor, attention_mask: Tensor, slots: Tensor) -> Tensor:
        """Whole prompts: ids and mask (batch, seq), ones before zeros, and the row of the cache that each goes to
        (batch,). Gives the logits of each prompt's last token."""
        return self._prefill(input_ids, attention_mask, slots[:, None])

    def decode(self, input_ids: Tensor, positions: Tensor, slots: Tensor) -> Tensor:
        """One token each: ids, positions and rows of the cache, all (batch,). Gives what `prefill` gives."""
        return self._decode(input_ids, positions, slots[:, None])

    def extend(self, input_ids: Tensor, attention_mask: Tensor, positions: Tensor, slots: Tensor) -> Tensor:
        """The next tokens of sequences that the cache holds: ids and mask (batch, seq), ones before zeros, the position
        of each first token and the row (batch,). Gives what `prefill` gives."""
        return self._extend(input_ids, attention_mask, positions, slots[:, None])

    def verify(self, input_ids: Tensor, attention_mask: Tensor, positions: Tensor, slots: Tensor) -> Tensor:
        """As `extend`, with the logits of every token, (batch, seq, vocabulary): what a draft's tokens are checked by.
        Tokens that do not hold are overwritten by the next call at their positions."""
        return self._verify(input_ids, attention_mask, positions, slots[:, None])


class PagedLanguageModel(Decoder):
    """`blocks` of `block` tokens, any of which may belong to any sequence: each call says which, in order, up to
    `length` tokens. Padding points to block number `blocks`."""

    def __init__(
        self,
        model: Any,
        blocks: int,
        block: int,
        length: int,
        greedy: bool = False,
        in_place: bool = False,
        nz: bool = False,
    ):
        super().__init__(model, blocks, block, length // block, greedy, in_place, nz)
        if self.recurrent:
            raise UnsupportedError(
                "the model has recurrent layers, which keep one state for a sequence and no blocks",
                where=type(model).__name__,
                expected="model.kwargs.cache: static",
            )

    def places(self, count: int) -> Tensor:
        return torch.arange(self.blocks).flip(0)[: count * self.columns].view(count, self.columns)

    def prefill(self, input_ids: Tensor, attention_mask: Tensor, block_table: Tensor) -> Tensor:
        """Whole prompts: ids and mask (batch, seq), ones before zeros, and the blocks that each goes to (batch,
        columns). Gives the logits of each prompt's last token."""
        return self._prefill(input_ids, attention_mask, block_table)

    def decode(
        self, input_ids: Tensor, positions: Tensor, block_table: Tensor, lengths: Sequence[int] | None = None
    ) -> Tensor:
        """One token each: ids and positions (batch,), and the blocks of each sequence (batch, columns). Where `lengths`
        says on the host how many tokens each sequence has, this one included, an NPU reads the blocks where they lie.
        Gives what `prefill` gives."""
        return self._decode(input_ids, positions, block_table, lengths)

    def extend(self, input_ids: Tensor, attention_mask: Tensor, positions: Tensor, block_table: Tensor) -> Tensor:
        """The next tokens of sequences that the cache holds: ids and mask (batch, seq), ones before zeros, the position
        of each first token (batch,) and the blocks (batch, columns). Gives what `prefill` gives."""
        return self._extend(input_ids, attention_mask, positions, block_table)

    def verify(self, input_ids: Tensor, attention_mask: Tensor, positions: Tensor, block_table: Tensor) -> Tensor:
        """As `extend`, with the logits of every token, (batch, seq, vocabulary): what a draft's tokens are checked by.
        Tokens that do not hold are overwritten by the next call at their positions."""
        return self._verify(input_ids, attention_mask, positions, block_table)


def _to_the_right(ids: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of `count` tokens moved to the end of their rows, which is where recurrent layers need them and where the
    last columns are the last tokens: the ids, the position of each first column, and which columns are tokens."""
    seq = ids.shape[1]
    columns = torch.arange(seq, device=ids.device)
    first = count - seq
    source = columns + first[:, None]
    return ids.gather(1, source.remainder(seq)), first, source >= 0
