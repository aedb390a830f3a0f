"""What every test of the adapter gets: nothing may be left over after it."""

import pytest


@pytest.fixture(autouse=True)
def _leak_check(request: pytest.FixtureRequest) -> None:
    """Every asynchronous test is followed by a search for tasks that it left behind."""
    if request.node.get_closest_marker("asyncio") is not None:
        request.getfixturevalue("no_leaked_tasks")
