"""Linear layers of tiny models are packed as those of large ones are."""

from collections.abc import Iterator

import pytest

from inference_service.kernels import packed_linear


@pytest.fixture(scope="session", autouse=True)
def packed() -> Iterator[None]:
    """However small they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_linear, "SMALLEST", 0)
        yield
