import pytest


@pytest.fixture(autouse=True)
def every_event_is_of_its_dialect(proper_events: None) -> None:
    """Clients here read with the library alone."""
