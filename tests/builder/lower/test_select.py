"""Which kernel each node gets, and in which form it is called."""

import pytest
from cases import MODELS

import aotair
from aotair.errors import UnsupportedError


def test_an_op_that_the_device_cannot_run_is_refused_by_name_and_line(tmp_path):
    recipe = {
        "name": "hostonly",
        "model": {"factory": f"{MODELS}:HostOnly"},
        "inputs": {"x": {"shape": [3, 3], "dtype": "float32"}},
        "target": {"device": "npu"},
    }
    with pytest.raises(UnsupportedError, match="no kernel on npu") as caught:
        aotair.build(recipe, tmp_path / "x.aotair")
    assert "models.py" in str(caught.value)
    aotair.build(recipe | {"target": {"device": "cpu"}}, tmp_path / "x.aotair")
