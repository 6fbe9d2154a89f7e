"""Models that compute with their weights before they use them: from lists of numbers, for random tests."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

WIDTH = 6
Step = Sequence[int | str]


def _flat(a: Tensor, b: Tensor, n: int) -> Tensor:
    return a.reshape(-1)[n % 3 :][: WIDTH * 4].view(4, WIDTH).repeat(2, 1)[:WIDTH]


def _cat(a: Tensor, b: Tensor, n: int) -> Tensor:
    return torch.cat([a, b], n % 2).narrow(n % 2, n % WIDTH, WIDTH)


def _quantised(a: Tensor, b: Tensor, n: int) -> Tensor:
    scale = a.abs().amax(n % 2, keepdim=True) / 127
    return (a / (scale + 1e-3)).round().clamp(-127, 127).to(torch.int8).to(torch.float32) * scale


# By name: what makes a matrix of two matrices and a number.
OPS: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "transpose": lambda a, b, n: a.t(),
    "contiguous": lambda a, b, n: a.t().contiguous(),
    "add": lambda a, b, n: a + b,
    "scale": lambda a, b, n: a * (0.5 + n % 3),
    "product": lambda a, b, n: (a @ b) / WIDTH,
    "row": lambda a, b, n: a * b[n % WIDTH],
    "column": lambda a, b, n: a + b[:, n % WIDTH].unsqueeze(1),
    "cat": _cat,
    "flat": _flat,
    "stack": lambda a, b, n: torch.stack([a, b], n % 3).mean(n % 3),
    "half": lambda a, b, n: a.to(torch.float16).to(torch.float32),
    "wide": lambda a, b, n: (a.double() * 3).float(),
    "norm": lambda a, b, n: a / a.norm(dim=n % 2, keepdim=True).clamp_min(0.1),
    "softmax": lambda a, b, n: torch.softmax(a, n % 2),
    "quantised": _quantised,
    "flip": lambda a, b, n: a.flip(n % 2),
    "chosen": lambda a, b, n: torch.where(a > b, a, b),
    "largest": lambda a, b, n: a.max(n % 2, keepdim=True).values + b,
    "gathered": lambda a, b, n: a.index_select(n % 2, torch.tensor([3, 1, 1, 0, 5, 2])),
}
# By name: how a matrix meets the input (rows, WIDTH).
USES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "linear": nn.functional.linear,
    "matmul": torch.matmul,
    "bias": lambda x, w: x + w[0],
    "scaled": lambda x, w: x * w.sum(),
    "view": lambda x, w: x @ w[:, 1:4].t().repeat(2, 1).t(),
}


class WeightArithmetic(nn.Module):
    """Each step makes a matrix of two earlier ones; `uses` are (name, which matrix)."""

    def __init__(self, steps: Sequence[Step], uses: Sequence[Step]):
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.randn(WIDTH, WIDTH)) for _ in range(2))
        self.register_buffer("third", torch.rand(WIDTH, WIDTH))
        self.register_buffer("fixed", torch.linspace(-1, 1, WIDTH * WIDTH).view(WIDTH, WIDTH), persistent=False)
        self._steps, self._uses = steps, uses

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        made = [self.first, self.second, self.third, self.fixed]
        for name, one, two, number in self._steps:
            made.append(OPS[name](made[one % len(made)], made[two % len(made)], number))
        y, outputs = x, []
        for name, which in self._uses:
            y = torch.tanh(USES[name](y, made[-1 - which % len(made)]))
            outputs.append(y)
        return (*outputs, made[-1])


def made(steps: Sequence[Step], uses: Sequence[Step], seed: int) -> WeightArithmetic:
    """The model of these lists with random weights."""
    with torch.device("cpu"):
        torch.manual_seed(seed)
        return WeightArithmetic(steps, uses).eval().requires_grad_(False)
