"""Session ids are strict."""

import pytest

from antiphon.contract import METADATA_SESSION_ID
from inference_service.errors import MetadataInvalid
from inference_service.session.metadata import session_id


@pytest.mark.parametrize("name", ["a", "s-1", "!~", "x" * 64])
def test_visible_ascii_of_1_to_64_characters_is_a_session_id(name: str) -> None:
    assert session_id([("other", "x"), (METADATA_SESSION_ID, name)]) == name


@pytest.mark.parametrize("values", [[], [""], ["x" * 65], ["a b"], ["a\n"], ["\u00e9"], [b"a"], ["a", "a"]])
def test_anything_else_is_refused(values: list[str | bytes]) -> None:
    with pytest.raises(MetadataInvalid) as refused:
        session_id([(METADATA_SESSION_ID, value) for value in values])
    assert [bad.path for bad in refused.value.fields] == [METADATA_SESSION_ID]
