"""Which cases of a test take long, and run where they are asked for alone? `pytest --long`, or `make test-long`."""

import pytest


def long(*values: object) -> object:
    """One case of a parametrised test that runs with --long alone: another one like it runs by default."""
    return pytest.param(*values, marks=pytest.mark.long)
