import pytest


@pytest.fixture(autouse=True)
def every_event_is_of_its_dialect(proper_events: None) -> None:
    """Check the events of these clients, which the library does not check."""
