"""Small models whose inputs, outputs, states and caches have so few shapes that any may be passed for any other."""

import torch
from cases import ROOT
from torch import nn


class Mix(nn.Module):
    """Rows in, rows out, in other places: there is not room for all of both at once."""

    def forward(self, a, b, c, d):
        return b * 0.5, torch.tanh(c), d - 0.25, a + 0.75


class Copies(nn.Module):
    """Outputs that are copies of inputs."""

    def forward(self, a, b):
        return b.clone(), a * 1, a + b


class Square(nn.Module):
    """Products, and an input that is an output."""

    def forward(self, x, y):
        return torch.tanh(x @ y), x.t() + y, y


class Window(nn.Module):
    """What a sliding window does."""

    def forward(self, window, new):
        moved = torch.cat([window[1:], new])
        return moved, moved.sum(0, keepdim=True)


class Memory(nn.Module):
    """A state that is also an output."""

    def __init__(self):
        super().__init__()
        self.register_buffer("memory", torch.ones(4, 4))

    def forward(self, x):
        self.memory.mul_(0.5).add_(x * 0.25)
        return self.memory + x, self.memory.t()


class Store(nn.Module):
    """A mutated input, a part of which is an output."""

    def forward(self, x, store):
        store.mul_(0.5)
        store[0] += x.sum(0)
        return store * 2, x + store[0], store[1:3]


class Bits(nn.Module):
    """Inputs looked at in other dtypes, one of them without dimensions."""

    def forward(self, x, count):
        return x.view(torch.int32), x * 2, count.reshape(1).view(torch.int32), count + 1


class Kept(nn.Module):
    """One output that callers keep, and one that they do not."""

    def forward(self, x):
        return {"kept": x * 2, "passing": x + 1}


class Wide(nn.Module):
    """An input looked at in a wider dtype."""

    def forward(self, x):
        return x.view(torch.int64) + 1, x * 2


class Stores(nn.Module):
    """Two mutated inputs."""

    def forward(self, one, other):
        one.add_(1)
        other.mul_(2)
        return one + other


class Notebook(nn.Module):
    """Two methods over one state."""

    def __init__(self):
        super().__init__()
        self.register_buffer("page", torch.zeros(4, 4))

    def write(self, x, y):
        self.page.copy_(x + y)
        return x - y, self.page * 2

    def read(self, q):
        return torch.tanh(q @ self.page), q + 1


def _recipe(model: str, **parts: object) -> dict:
    return {"name": model.lower(), "model": {"factory": f"{ROOT / 'tests' / 'sequence_models.py'}:{model}"}, **parts}


_ROWS = {"shape": ["n", 4], "dtype": "float32", "pad": "any"}
_SQUARE = {"shape": [4, 4], "dtype": "float32"}

RECIPES = {
    "mix": _recipe("Mix", inputs=dict.fromkeys("abcd", _ROWS), buckets={"n": [2, 4]}),
    "copies": _recipe("Copies", inputs=dict.fromkeys("ab", _ROWS), buckets={"n": [2, 4]}),
    "square": _recipe("Square", inputs={"x": _SQUARE, "y": _SQUARE}),
    "window": _recipe("Window", inputs={"window": _SQUARE, "new": {"shape": [1, 4], "dtype": "float32"}}),
    "memory": _recipe("Memory", inputs={"x": _SQUARE}),
    "store": _recipe(
        "Store", inputs={"x": _ROWS | {"pad": 0}, "store": _SQUARE | {"mutated": True}}, buckets={"n": [2, 4]}
    ),
    "bits": _recipe("Bits", inputs={"x": _SQUARE, "count": {"shape": [], "dtype": "int64", "range": [0, 9]}}),
    "kept": _recipe("Kept", inputs={"x": _SQUARE}, outputs={"kept": {"clone": True}, 1: {"clone": False}}),
    "wide": _recipe("Wide", inputs={"x": {"shape": [4], "dtype": "float32"}}),
    "stores": _recipe("Stores", inputs=dict.fromkeys(("one", "other"), _SQUARE | {"mutated": True})),
    "notebook": _recipe(
        "Notebook",
        entry_points={
            "write": {"method": "write", "inputs": {"x": _SQUARE, "y": _SQUARE}},
            "read": {"method": "read", "inputs": {"q": _ROWS}, "buckets": {"n": [2, 4]}},
        },
    ),
}
