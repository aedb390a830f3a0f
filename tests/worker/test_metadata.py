"""Session ids are strict, trace contexts lenient."""

import pytest

from antiphon.semconv import METADATA_SESSION_ID
from inference_service.errors import MetadataInvalid
from inference_service.metadata import session_id, trace_context

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize("name", ["a", "s-1", "!~", "x" * 64])
def test_visible_ascii_of_1_to_64_characters_is_a_session_id(name: str) -> None:
    assert session_id([("other", "x"), (METADATA_SESSION_ID, name)]) == name


@pytest.mark.parametrize("values", [[], [""], ["x" * 65], ["a b"], ["a\n"], ["\u00e9"], [b"a"], ["a", "a"]])
def test_anything_else_is_refused(values: list[str | bytes]) -> None:
    with pytest.raises(MetadataInvalid) as refused:
        session_id([(METADATA_SESSION_ID, value) for value in values])
    assert [bad.path for bad in refused.value.fields] == [METADATA_SESSION_ID]


@pytest.mark.parametrize("text", [TRACE, TRACE.replace("00-4", "01-4") + "-more"])
def test_a_trace_context_is_kept(text: str) -> None:
    assert trace_context(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        TRACE.upper(),
        TRACE + "-more",
        TRACE.replace("00-4", "ff-4"),
        "00-" + "0" * 32 + TRACE[35:],
        TRACE[:36] + "0" * 16 + "-01",
        TRACE + "x" * 10_000,
    ],
)
def test_a_bad_trace_context_is_none(text: str) -> None:
    assert trace_context(text) is None
