"""Tests of the lookup of served models."""

import json

import pytest

from antiphon.connection.models import _names
from antiphon.errors import ConnectError


def listed(**modes: list[str] | None) -> bytes:
    data = [{"id": name, **({} if told is None else {"modes": told})} for name, told in modes.items()]
    return json.dumps({"object": "list", "data": data}).encode()


def test_models_for_a_mode_are_those_that_serve_it() -> None:
    body = listed(chats=["chat"], ears=["transcription"])
    assert _names(body, "") == ("chats", "ears")
    assert _names(body, "transcription") == ("ears",)
    for told in (body, listed()):
        with pytest.raises(ConnectError) as caught:
            _names(told, "audio")
        assert caught.value.retryable


def test_models_without_listed_modes_serve_all_modes() -> None:
    assert _names(listed(mini=None), "transcription") == ("mini",)
