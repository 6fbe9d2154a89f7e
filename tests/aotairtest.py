"""Custom ops with several results, of which some are new values of arguments, and their in-place forms."""

import pytest
import torch

from aotair.passes import multi_output
from aotair.passes.multi_output import FORMS, register_inplace_form

_library = torch.library.Library("aotairtest", "FRAGMENT")


def _define(name: str, schema: str, function) -> None:
    _library.define(name + schema)
    _library.impl(name, function, "CompositeExplicitAutograd")


def _norm(x1, x2, scale):
    total = x1 + x2
    return total.abs().mean(-1, keepdim=True), total * scale, total


def _norm_inplace(x1, x2, scale):
    rstd, first, second = _norm(x1, x2, scale)
    x1.copy_(first)
    x2.copy_(second)
    return rstd


def _rope(x, key_cache, value_cache):
    return x + 1, x * 2, key_cache + x, value_cache - x


def _rope_inplace(x, key_cache, value_cache):
    key_cache.add_(x)
    value_cache.sub_(x)
    return x + 1, x * 2


_define("norm_functional", "(Tensor x1, Tensor x2, float scale) -> (Tensor, Tensor, Tensor)", _norm)
_define("norm", "(Tensor(a!) x1, Tensor(b!) x2, float scale) -> Tensor", _norm_inplace)
_define("rope_functional", "(Tensor x, Tensor k, Tensor v) -> (Tensor, Tensor, Tensor, Tensor)", _rope)
_define("rope", "(Tensor x, Tensor(a!) k, Tensor(b!) v) -> (Tensor, Tensor)", _rope_inplace)
ops = torch.ops.aotairtest


@pytest.fixture(autouse=True)
def forms(monkeypatch):
    monkeypatch.setattr(multi_output, "FORMS", dict(FORMS))
    register_inplace_form("aotairtest::norm_functional", "aotairtest::norm", (0, 1))
    register_inplace_form("aotairtest::rope_functional", "aotairtest::rope", (1, 2))
