"""Packs the linear layers of tiny models too; by default only large ones are packed."""

from collections.abc import Iterator

import pytest

from inference_service.kernels import packed_linear


@pytest.fixture(scope="session", autouse=True)
def packed() -> Iterator[None]:
    """Pack linear layers of any size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_linear, "SMALLEST", 0)
        yield
