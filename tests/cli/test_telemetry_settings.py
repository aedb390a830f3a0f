"""Variables `OTEL_*` that a service cannot honour, as its operator sees them."""

import os

import pytest

from tests.cli.support.process import ANTIPHON, run
from tests.support.patience import START_S


@pytest.mark.parametrize("command", ["worker", "adapter"])
@pytest.mark.parametrize("variable", ["OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "OTEL_SPAN_LINK_COUNT_LIMIT"])
def test_service_with_an_unreadable_span_limit_exits_with_its_name(command: str, variable: str) -> None:
    """The first of them fails in the import of the SDK, before the service could say anything."""
    outcome = run([*ANTIPHON, command], {**os.environ, variable: "many"}, None, START_S)

    assert outcome.code == 2
    assert f"{variable} is 'many': set it to a whole number" in outcome.err
    assert "Traceback" not in outcome.err
