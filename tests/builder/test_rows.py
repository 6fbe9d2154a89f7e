"""The rows of one rank, and those of all: parts of sizes that ranks divide and of others."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from aotair.ops import rows
from aotair_runtime.devices import groups


class Group:
    """Ranks one after the other: what each brings is known."""

    def __init__(self, number: int, brought: list[torch.Tensor]):
        self.number, self.size, self._brought = number, len(brought), brought

    def all_gather(self, out: torch.Tensor, x: torch.Tensor) -> None:
        assert torch.equal(x, self._brought[self.number])
        out.copy_(torch.cat(self._brought))

    def reduce_scatter(self, out: torch.Tensor, x: torch.Tensor, reduce: str) -> None:
        assert torch.equal(x, self._brought[self.number]) and reduce == "sum"
        out.copy_(sum(self._brought).chunk(self.size)[self.number])


@pytest.mark.parametrize("shape", [(8, 5), (2, 3, 5), (1, 1, 5), (7, 5), (2, 2, 2, 5), (0, 5)], ids=str)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_rows_of_all_ranks_are_the_rows(shape: tuple[int, ...], ranks: int):
    x = torch.randn(shape)
    numbers = [torch.tensor([number]) for number in range(ranks)]
    own = [torch.ops.air.own_rows(x, number, ranks, "tp") for number in numbers]
    for number in range(ranks):
        with groups.named({"tp": Group(number, own)}):
            assert torch.equal(torch.ops.air.all_rows(own[number][None], x.shape[:-1], ranks, "tp"), x)


@pytest.mark.parametrize("shape", [(8, 5), (2, 3, 5), (1, 1, 5)], ids=str)
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_sum_of_all_ranks_is_cut_as_their_rows_are(shape: tuple[int, ...], ranks: int):
    brought = [torch.randn(shape, dtype=torch.float64) for _ in range(ranks)]
    total = sum(brought)
    count = total.flatten(0, -2).shape[0]
    filled = [torch.cat([x.flatten(0, -2), torch.zeros(-count % ranks, shape[-1], dtype=x.dtype)]) for x in brought]
    for number in range(ranks):
        want = rows.own_rows(total, torch.tensor([number]), ranks, "tp")
        there = max(0, min(count - number * want.shape[0], want.shape[0]))  # the others fill up
        with groups.named({"tp": Group(number, filled)}):
            got = torch.ops.air.sum_rows(brought[number], ranks, "tp")
        assert got.shape == want.shape
        torch.testing.assert_close(got[:there], want[:there])


def test_shapes_are_those_of_the_kernels():
    with FakeTensorMode():
        x = torch.empty(2, 3, 5)
        own = torch.ops.air.own_rows(x, torch.empty(1, dtype=torch.int64), 4, "tp")
        assert own.shape == torch.ops.air.sum_rows(x, 4, "tp").shape == (2, 5)
        assert torch.ops.air.all_rows(own, (2, 3), 4, "tp").shape == (2, 3, 5)
        with pytest.raises(ValueError, match="a tensor of 1 dimensions has no rows"):
            torch.ops.air.own_rows(torch.empty(5), torch.empty(1, dtype=torch.int64), 2, "tp")
