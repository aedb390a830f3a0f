"""Tests of `antiphon adapter` as a process, and of errors that `antiphon worker` shares with it."""

import os
import sys

import pytest

from tests.cli.support.process import ANTIPHON, run
from tests.support.patience import START_S

COMMAND = """
import sys
import ws_adapter.app
from antiphon_command.command import main
from threadpoolctl import threadpool_info

def blas_threads():
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

async def serve(options, reread):
    print(blas_threads())
    return 0

ws_adapter.app.serve = serve
print(blas_threads())
sys.exit(main(["adapter", "--worker", "127.0.0.1:1"]))
"""


def test_running_adapter_computes_matrix_products_on_one_thread() -> None:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "2"}
    outcome = run([sys.executable, "-c", COMMAND], environment, None, START_S)

    assert outcome.code == 0, outcome.err
    assert outcome.out.splitlines() == ["{2}", "{1}"]


@pytest.mark.parametrize("command", ["worker", "adapter"])
@pytest.mark.parametrize("variable", ["OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "OTEL_SPAN_LINK_COUNT_LIMIT"])
def test_service_with_an_unreadable_span_limit_names_the_variable(command: str, variable: str) -> None:
    """The first of them fails in the import of the SDK, before the service could say anything."""
    outcome = run([*ANTIPHON, command], {**os.environ, variable: "many"}, None, START_S)

    assert outcome.code == 2
    assert f"{variable} is 'many': set it to a whole number" in outcome.err
    assert "Traceback" not in outcome.err
