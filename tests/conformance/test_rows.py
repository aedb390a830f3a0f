"""Bookkeeping: each row of the document that `/v1/realtime` has to keep is quoted by a test's docstring."""

import ast
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent

STATES = ("QUEUED", "CONNECTED", "CONFIGURING", "ACTIVE")
COLUMNS = ("init", "input", "session.close", "unknown type")
ROWS = [
    *(f"3.5 {state}/{column}" for state in STATES for column in COLUMNS),
    *(f"3.3.{rule}" for rule in range(1, 10)),
    *(f"{section}" for section in ("3.1", "3.2", "3.6", "4.1", "6.1", "6.2", "6.3", "6.4", "6.5", "6.6")),
    *(f"Row 11.{row}" for row in (1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 14, 15, 16, 22)),
    "7.1 QUEUE_FULL",
    "7.1 NO_FREE_SLOT",
    "7.1 DRAINING",
    "7.1 LEASE_INVALID",
    "7.1 MODE_UNSUPPORTED",
    "7.1 MODEL_NOT_FOUND",
    "7.1 CONFIG_INVALID",
    "7.1 `ItemError`",
    "7.1 INFERENCE_FAILED",
    "7.1 `UNIT_END_CONTEXT_FULL`",
    "7.1 KV_EXHAUSTED",
    "7.1 UNIT_TIMEOUT",
    "7.1 ENGINE_FATAL",
    "7.1 `GoAway`",
    "7.1 adapter shutdown",
    "7.2 not JSON",
    "7.2 binary frame",
    "7.2: not an object",
    "7.2: missing",
    "7.2: wrong JSON type",
    "7.2 invalid UTF-8",
    "7.2 message over the limit",
    "7.2 bad WebSocket framing",
    "7.2: more than 20 `error` answers",
    "7.2: more than 1000 events",
    "9.1 session",
    "9.1 context",
    "9.1 init",
    "9.1 idle",
]
"""What the docstrings say. Section 9 has a test for each of its sentences in `test_realtime_queue`."""


def quotations() -> str:
    """The docstrings of all tests of `/v1/realtime`."""
    found = []
    for path in [*FOLDER.glob("test_realtime_*.py"), *FOLDER.glob("test_earlier_*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                docstring = ast.get_docstring(node)
                assert docstring, f"{path.name}: {node.name} does not say which row it is about"
                found.append(re.sub(r"\s+", " ", docstring))
    return "\n".join(found)


@pytest.fixture(scope="module")
def quoted() -> str:
    return quotations()


@pytest.mark.parametrize("row", ROWS)
def test_row_has_a_test(quoted: str, row: str) -> None:
    assert re.search(rf"(?<![0-9.]){re.escape(row)}(?![0-9])", quoted, re.IGNORECASE), f"no test quotes {row}"
