"""Which token comes next: the likeliest, or one drawn from the likely ones."""

from dataclasses import dataclass

import torch

from aotair_runtime.errors import AotairError


@dataclass(frozen=True)
class Sampling:
    """`temperature` 0 takes the likeliest token. Of others, the `top_k` likeliest are kept (0: all), and of these the
    fewest that together have a probability of `top_p`."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None

    def __post_init__(self) -> None:
        limits = (
            ("temperature", 0 <= self.temperature < float("inf"), "0 or more"),
            ("top_p", 0 < self.top_p <= 1, "more than 0, 1 at most"),
            ("top_k", self.top_k >= 0, "0 or more"),
            ("seed", self.seed is None or 0 <= self.seed < 1 << 63, "from 0 to 2^63 - 1"),
        )
        for name, fits, expected in limits:
            if not fits:
                raise AotairError(f"{name} is not possible", expected=expected, got=str(getattr(self, name)))


class Sampler:
    """Draws by a generator of its own: the same seed, the same tokens."""

    def __init__(self, sampling: Sampling):
        self._sampling, self._generator = sampling, torch.Generator()
        if sampling.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(sampling.seed)

    def __call__(self, logits: torch.Tensor) -> int:
        """A token, of the logits (vocabulary,)."""
        if self._sampling.temperature == 0:
            return int(logits.argmax())
        probabilities = likely(logits, self._sampling)
        return int(torch.multinomial(probabilities, 1, generator=self._generator))


def likely(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The probability of each token (vocabulary,), zero for those that are not kept."""
    scores = logits.to("cpu", torch.float32) / sampling.temperature
    if 0 < sampling.top_k < scores.numel():
        least = scores.topk(sampling.top_k).values[-1]
        scores = scores.masked_fill(scores < least, -torch.inf)
    probabilities = scores.softmax(-1)
    if sampling.top_p < 1:
        ordered, order = probabilities.sort(descending=True)
        before = ordered.cumsum(-1) - ordered
        probabilities = probabilities.index_fill(0, order[before >= sampling.top_p], 0.0)
    return probabilities / probabilities.sum()
