"""What tests of the runtime share."""

from collections.abc import Iterator

import pytest

from aotair_runtime.steps import attention, library


@pytest.fixture(scope="module")
def whatever_pays() -> Iterator[None]:
    """Kernels of `aotair-kernels` are taken where torch's are faster, too: they are right there as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "is_wide", lambda: True)
        patch.setattr(attention, "_pays", lambda *_: True)
        yield
