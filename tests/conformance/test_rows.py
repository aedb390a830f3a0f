"""Bookkeeping: a test quotes each row of the document that a public protocol has to keep."""

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


TRANSCRIPTION_ROWS = [
    "8.1: each event",
    "8.1 `session.update`",
    "8.1 `final`",
    *(f"8.2 {state}" for state in ("NO_MODEL", "READY", "OPEN", "FINISHING", "SKIPPING")),
    "8.2: empty utterance",
    "8.2: exactly one `done`",
    "8.2: utterances per socket are unlimited",
    "8.2: utterances that arrive ahead",
    "8.2: the slot is not kept at all while others wait",
    "8.2: after `done` the slot is kept at most 30 s",
    "8.2: waiting audio per socket",
    "8.2: OPEN and nothing for 30 s",
    "8.2: there is no session time limit",
    "8.2: no queue events",
    "8.3",
    *(f"Row 11.{row}" for row in (9, 11, 18, 19, 20, 21, 22)),
    "7.1 QUEUE_FULL",
    "7.1 NO_FREE_SLOT",
    "7.1 UNAVAILABLE LOADING, DRAINING",
    "7.1 LEASE_MISSING",
    "7.1 MODE_UNSUPPORTED",
    "7.1 MODEL_NOT_FOUND",
    "7.1 CONFIG_INVALID",
    "7.1 `ItemError`",
    "7.1 `UNIT_END_CONTEXT_FULL`",
    "7.1 KV_EXHAUSTED",
    "7.1 UNIT_TIMEOUT",
    "7.1 WORKER_LOST",
    "7.1 `GoAway`",
    "7.1 adapter shutdown",
    "7.2 binary frame",
    "7.2 invalid UTF-8",
    "7.2 message over the limit",
    "7.2 bad WebSocket framing",
    "7.2: more than 20 `error` answers",
    "7.2: more than 1000 events",
    "7.3",
    "9.1: T exactly 16,777,216 bytes",
]
"""The same of section 8; what is malformed is one list for 7.2 and 8.3."""


CHAT_ROWS = [
    *("5.1", "5.2", "3.1", "3.2", "3.3 Chat", "6.6"),
    *(f"5 WAIT_REQUEST/{column}" for column in ("frame", "no frame in time", "disconnect")),
    *("5 QUEUED, GENERATE/frame", "5 QUEUED/disconnect", "5 PREFILL, GENERATE/disconnect", "5 DONE/frame"),
    "5 QUEUED, PREFILL, GENERATE/failure",
    *(f"{state}/{column}" for state in STATES for column in COLUMNS),
    *("CONNECTED/other", "3.5 CLOSING"),
    *(f"Row {row}" for row in (2, 7, 8, 9, 11, 16, 17, 22)),
    *("7.1 QUEUE_FULL", "7.1 MODE_UNSUPPORTED", "7.1 CONFIG_INVALID", "7.1 `ItemError`", "INFERENCE_FAILED"),
    *("7.1 KV_EXHAUSTED", "UNIT_TIMEOUT", "WORKER_LOST", "ENGINE_FATAL", "`UNIT_END_CONTEXT_FULL`"),
    *("7.1 adapter shutdown", "IMAGE_INVALID", "INPUT_TOO_LONG"),
    *("7.2 not JSON", "7.2 binary frame", "7.2: not an object", "7.2: required field missing"),
    *("7.2: wrong JSON type", "7.2 invalid UTF-8", "7.2 message over the limit"),
    *("7.2: more than 20 `error` answers", "7.2: more than 1000 events", "7.3 slow readers"),
    *("9.1 session", "9.1 init", "9.1 idle", "9.1: chat and C take 32 MiB", "9.1 message size"),
]
"""The same of chat, sections 3 and 5."""


def quotations(folder: str) -> str:
    """The docstrings of all tests in this folder."""
    found = []
    for path in (FOLDER / folder).glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                docstring = ast.get_docstring(node)
                assert docstring, f"{path.name}: {node.name} does not say which row it is about"
                found.append(re.sub(r"\s+", " ", docstring))
    return "\n".join(found)


@pytest.fixture(scope="module")
def quoted() -> str:
    return quotations("realtime")


@pytest.fixture(scope="module")
def quoted_of_chat() -> str:
    return quotations("chat")


@pytest.fixture(scope="module")
def quoted_of_transcription() -> str:
    return quotations("transcription")


def is_quoted(row: str, text: str) -> bool:
    return re.search(rf"(?<![0-9.]){re.escape(row)}(?![0-9])", text, re.IGNORECASE) is not None


@pytest.mark.parametrize("row", ROWS)
def test_row_has_a_test(quoted: str, row: str) -> None:
    assert is_quoted(row, quoted), f"no test quotes {row}"


@pytest.mark.parametrize("row", CHAT_ROWS)
def test_row_of_chat_has_a_test(quoted_of_chat: str, row: str) -> None:
    assert is_quoted(row, quoted_of_chat), f"no test quotes {row}"


@pytest.mark.parametrize("row", TRANSCRIPTION_ROWS)
def test_row_of_transcription_has_a_test(quoted_of_transcription: str, row: str) -> None:
    assert is_quoted(row, quoted_of_transcription), f"no test quotes {row}"
