"""The kinds of sessions that a runtime holds, found through its table."""

from typing import Any

import pytest

from inference_service.families import antiphon_mini
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.interface.setups import (
    ChatSetup,
    DuplexSettings,
    DuplexSetup,
    Sampling,
    SessionSetup,
    TokensSetup,
    TranscribeSetup,
    Window,
)
from inference_service.session.base.session import Session
from tests.inference_service.engine.support import tiny

SETUPS: list[SessionSetup] = [
    DuplexSetup("", DuplexSettings(), Window(), seed=0),
    ChatSetup(Sampling(), seed=0),
    TokensSetup(Sampling(), seed=0),
    TranscribeSetup(Sampling(), seed=0),
]


@pytest.fixture(scope="module")
def runtime() -> DuplexRuntime:
    return DuplexRuntime(antiphon_mini.components(*tiny.model()), len(SETUPS))


def opened(runtime: DuplexRuntime) -> list[Session[Any]]:
    return [runtime.open("one", slot, setup, lambda event: None) for slot, setup in enumerate(SETUPS)]


def test_a_kind_hears_its_own_sessions_together_and_no_others(
    runtime: DuplexRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[list[Session[Any]]] = []
    for kind in runtime.kinds.values():
        monkeypatch.setattr(kind, "hear", heard.append)
    duplex, chat, tokens, transcription = opened(runtime)
    other = opened(runtime)[0]
    runtime.hear([duplex, transcription, other, chat, tokens])
    assert heard == [[duplex, other], [transcription], [chat], [tokens]]
