"""A URL with its subprotocols selects a dialect and a mode, or is refused by name."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.ws_adapter.access.test_keys import refused_upgrade
from tests.ws_adapter.support.conversation import codes
from tests.ws_adapter.support.stage import Stage
from ws_adapter.protocol.core.config import Mode
from ws_adapter.protocol.core.kind import Kind
from ws_adapter.protocol.wire.errors import CloseCode, ErrorCode
from ws_adapter.web.routes import Dialect, Page, RefusedSession, Selection, find_page, select

ALL: frozenset[Mode] = frozenset(Mode)
DUPLEX = frozenset({Mode.AUDIO, Mode.VIDEO})
TALKS, WRITES = frozenset({Mode.CHAT}), frozenset({Mode.TRANSCRIPTION})

AUDIO, VIDEO, CHAT = (Selection(Dialect.REALTIME, mode) for mode in (Mode.AUDIO, Mode.VIDEO, Mode.CHAT))
TRANSCRIBING = Selection(Dialect.TRANSCRIPTION, Mode.TRANSCRIPTION, announces_slot=False)
OPENAI = Selection(Dialect.REALTIME_GA, Mode.CHAT, announces_slot=False, model="")
CHATTING = Selection(Dialect.CHAT, Mode.CHAT, announces_slot=False)
BARE_DUPLEX = Selection(Dialect.DUPLEX, Mode.VIDEO, announces_slot=False)


def labelled(label: str | None, mode: Mode) -> Selection:
    return Selection(Dialect.DUPLEX, mode, label)


def chosen(
    target: str, *offered: str, default: Mode = Mode.VIDEO, opens: frozenset[Mode] = frozenset()
) -> Any:
    return select(target, offered, default, ALL, opens)


@pytest.mark.parametrize(
    ("target", "selection"),
    [
        ("/v1/realtime?mode=audio", AUDIO),
        ("/v1/realtime?mode=video", VIDEO),
        ("/v1/realtime?mode=chat", CHAT),
        ("/v1/realtime/?mode=audio", AUDIO),
        ("/v1/realtime?mode=audio&mode=video", AUDIO),
        ("/v1/realtime?mode=&mode=audio", AUDIO),
        ("/v1/realtime?mode=audio&call_id=rtc_1", AUDIO),
        ("/v1/realtime?mode=audio&intent=transcription&model=m", AUDIO),
        ("/v1/realtime?model=gpt-realtime&mode=video", VIDEO),
        ("/v1/realtime?model=gpt-realtime&mode=chat", CHAT),
        ("/v1/realtime?mode=transcription", TRANSCRIBING),
        ("/v1/realtime?mode=transcription&intent=chat&model=m", TRANSCRIBING),
        ("/v1/realtime?intent=transcription&model=m", replace(TRANSCRIBING, may_be_ga=True)),
        ("/v1/realtime", OPENAI),
        ("/v1/realtime?mode=", OPENAI),
        ("/v1/realtime?model=gpt-realtime", replace(OPENAI, model="gpt-realtime")),
        ("/v1/realtime?model=", OPENAI),
        ("/ws/chat", CHATTING),
        ("/ws/chat/", CHATTING),
        ("/ws/chat?mode=audio&model=x", CHATTING),
        ("/v1/transcription", TRANSCRIBING),
        ("/v1/transcription/?mode=audio&intent=x&model=m", TRANSCRIBING),
        ("/ws/duplex", BARE_DUPLEX),
        ("/ws/duplex/", BARE_DUPLEX),
        ("/ws/duplex?session_id=adx_1", BARE_DUPLEX),
        ("/ws/duplex/adx_1/", labelled("adx_1", Mode.AUDIO)),
        ("/ws/duplex/adx_1?mode=video&model=m&intent=transcription", labelled("adx_1", Mode.AUDIO)),
        ("/ws/duplex/omni_k3f9", labelled("omni_k3f9", Mode.VIDEO)),
        ("/ws/duplex/audio_duplex_1", labelled("audio_duplex_1", Mode.AUDIO)),
        ("/ws/duplex/ADX_1", labelled("ADX_1", Mode.VIDEO)),
        ("/ws/duplex/xadx_1", labelled("xadx_1", Mode.VIDEO)),
        ("/ws/duplex/a.b~c!d", labelled("abcd", Mode.VIDEO)),
        ("/ws/duplex/%61dx_%2F..%20x", labelled("adx_x", Mode.AUDIO)),
        ("/ws/duplex/%C3%A9", labelled(None, Mode.VIDEO)),
        ("/ws/duplex/...", labelled(None, Mode.VIDEO)),
        ("/ws/duplex/" + "y" * 500, labelled("y" * 128, Mode.VIDEO)),
    ],
)
def test_url_with_openais_subprotocol_selects(target: str, selection: Selection) -> None:
    assert chosen(target, "realtime", "openai-insecure-api-key.k") == selection


@pytest.mark.parametrize("default", list(Mode))
def test_client_that_asks_for_no_mode_gets_the_default(default: Mode) -> None:
    usual = {Mode.AUDIO: AUDIO, Mode.VIDEO: VIDEO, Mode.CHAT: CHAT, Mode.TRANSCRIPTION: TRANSCRIBING}[default]
    for query in ("", "?mode=", "?autostart=1&client_id=x", "?intent=conversation"):
        assert chosen(f"/v1/realtime{query}", "chat", default=default) == usual
    named = chosen("/v1/realtime?model=whisper", default=default)
    assert named == (TRANSCRIBING if default is Mode.TRANSCRIPTION else replace(OPENAI, model="whisper"))


@pytest.mark.parametrize("default", list(Mode))
@pytest.mark.parametrize(
    ("target", "opens", "dialect"),
    [
        ("/v1/realtime", TALKS, Dialect.REALTIME_GA),
        ("/v1/realtime?model=m", TALKS, Dialect.REALTIME_GA),
        ("/v1/realtime?intent=transcription", TALKS, Dialect.REALTIME_GA),
        ("/v1/realtime", WRITES, Dialect.TRANSCRIPTION_GA),
        ("/v1/realtime?model=m", WRITES, Dialect.TRANSCRIPTION_GA),
        ("/v1/realtime?intent=transcription", WRITES, Dialect.TRANSCRIPTION_GA),
        ("/v1/realtime", TALKS | WRITES, Dialect.REALTIME_GA),
        ("/v1/realtime?intent=transcription", TALKS | WRITES, Dialect.TRANSCRIPTION_GA),
        ("/v1/realtime?mode=audio", TALKS | WRITES, Dialect.REALTIME),
        ("/ws/chat", TALKS, Dialect.CHAT),
    ],
)
def test_client_secret_says_which_of_openais_sessions_it_opens(
    target: str, opens: frozenset[Mode], dialect: Dialect, default: Mode
) -> None:
    assert chosen(target, default=default, opens=opens).dialect is dialect


def test_realtime_with_a_model_that_holds_no_chats_is_a_session_of_audio() -> None:
    url = "/v1/realtime?model=moshi"
    found = select(url, (), Mode.VIDEO, DUPLEX, holds_chats=lambda model: model != "moshi")

    assert found == replace(OPENAI, mode=Mode.AUDIO, model="moshi")
    assert isinstance(found, Selection)
    assert found.kind is Kind.REALTIME


def test_kind_follows_from_dialect_and_mode() -> None:
    kinds = {AUDIO: Kind.AUDIO_DUPLEX, VIDEO: Kind.OMNI_DUPLEX, CHAT: Kind.CHAT, CHATTING: Kind.CHAT}
    kinds |= {TRANSCRIBING: Kind.TRANSCRIPTION, OPENAI: Kind.REALTIME, BARE_DUPLEX: Kind.OMNI_DUPLEX}
    kinds |= {labelled("adx_1", Mode.AUDIO): Kind.AUDIO_DUPLEX}

    assert {selection: selection.kind for selection in kinds} == kinds


DUPLEX_ADVICE = "?mode=audio or ?mode=video"
ADVICE = f"{DUPLEX_ADVICE} or ?mode=chat or ?mode=transcription"


@pytest.mark.parametrize(
    ("target", "served", "dialect", "mode", "advice"),
    [
        ("/v1/realtime?mode=Audio", ALL, Dialect.REALTIME, "Audio", ADVICE),
        ("/v1/realtime?mode=VIDEO", ALL, Dialect.REALTIME, "VIDEO", ADVICE),
        ("/v1/realtime?mode=audio ", ALL, Dialect.REALTIME, "audio ", ADVICE),
        ("/v1/realtime?mode=x", ALL, Dialect.REALTIME, "x", ADVICE),
        ("/v1/realtime?mode=transcription", DUPLEX, Dialect.TRANSCRIPTION, "transcription", DUPLEX_ADVICE),
        ("/v1/realtime?intent=transcription", DUPLEX, Dialect.TRANSCRIPTION, "transcription", DUPLEX_ADVICE),
        ("/v1/realtime?mode=chat", DUPLEX, Dialect.REALTIME, "chat", DUPLEX_ADVICE),
        ("/v1/realtime?mode=audio", TALKS, Dialect.REALTIME, "audio", "?mode=chat"),
        ("/ws/chat", DUPLEX, Dialect.CHAT, "chat", DUPLEX_ADVICE),
        ("/ws/chat", frozenset({Mode.AUDIO}), Dialect.CHAT, "chat", "?mode=audio"),
        ("/ws/duplex/adx_1", TALKS, Dialect.DUPLEX, "audio", "?mode=chat"),
    ],
)
def test_mode_that_is_unknown_or_that_no_worker_serves_is_refused(
    target: str, served: frozenset[Mode], dialect: Dialect, mode: str, advice: str
) -> None:
    refusal = select(target, (), Mode.VIDEO, served)

    assert isinstance(refusal, RefusedSession)
    assert (refusal.dialect, refusal.verdict.code) == (dialect, ErrorCode.UNSUPPORTED_MODE)
    assert refusal.verdict.close is CloseCode.POLICY_VIOLATION
    assert refusal.verdict.message == f"mode={mode} is not served here; choose another by {advice}"


def test_long_mode_is_not_repeated_whole() -> None:
    assert len(chosen("/v1/realtime?mode=" + "x" * 5000).verdict.message) < 200


@pytest.mark.parametrize(
    "query", ["call_id=1", "call_id=", "call_id=1&model=m", "intent=transcription&call_id=1"]
)
def test_call_id_is_refused_by_name(query: str) -> None:
    """A `call_id` would open a session of another model than the call's."""
    found = select(f"/v1/realtime?{query}", (), Mode.VIDEO, None)

    assert isinstance(found, RefusedSession)
    assert found.dialect is Dialect.REALTIME_GA
    assert found.verdict.message.startswith("call_id: ")


def test_client_secret_for_unserved_transcription_gets_openai_error() -> None:
    refusal = select("/v1/realtime", [], Mode.VIDEO, DUPLEX, WRITES)

    assert isinstance(refusal, RefusedSession)
    assert refusal.dialect is Dialect.TRANSCRIPTION_GA
    assert refusal.verdict.code is ErrorCode.UNSUPPORTED_MODE


def test_whether_a_worker_sees_is_its_own_affair() -> None:
    assert select("/ws/duplex", (), Mode.VIDEO, {Mode.AUDIO}) == BARE_DUPLEX


def test_client_without_worker_may_queue_and_transcription_must_retry() -> None:
    for target in ("/v1/realtime?mode=chat", "/ws/chat", "/ws/duplex", "/v1/realtime"):
        assert isinstance(select(target, (), Mode.VIDEO, None), Selection)
    for target in ("/v1/transcription", "/v1/realtime?mode=transcription"):
        refusal = select(target, (), Mode.VIDEO, None)
        assert isinstance(refusal, RefusedSession)
        assert (refusal.dialect, refusal.verdict.code) == (
            Dialect.TRANSCRIPTION,
            ErrorCode.SERVICE_UNAVAILABLE,
        )
        assert refusal.verdict.close is CloseCode.TRY_AGAIN_LATER


@pytest.mark.parametrize(
    "target",
    [
        "/v1",
        "/V1/realtime",
        "/v1/realtime/x",
        "/v2/realtime?mode=audio",
        "/v1/transcription/x",
        "/ws/chat/x",
        "/ws/half_duplex",
        "/ws/duplexx",
        "/ws/duplex/a/b",
        "//[x",
        "http://[::1/v1/realtime",
    ],
)
def test_no_websocket_elsewhere(target: str) -> None:
    assert chosen(target) is None
    assert find_page(target) is None


def test_pages_and_unserved_transcription_have_no_websocket() -> None:
    assert select("/v1/transcription", [], Mode.VIDEO, DUPLEX) is None
    pages = {"": "index.html", "/": "index.html", "/?x=1": "index.html", "/page/client/a.js": "client/a.js"}
    for target, file in pages.items():
        assert chosen(target) is None
        assert find_page(target) == (Page.FILE, file)


def url(stage: Stage, target: str) -> str:
    return stage.address.replace("http://", "ws://") + target


async def test_refusals_come_after_the_upgrade_in_their_own_words_and_404_elsewhere(lonely: Stage) -> None:
    half_duplex = "half duplex is not served here; use /ws/duplex"
    async with lonely.client(url(lonely, "/v1/realtime?mode=half_duplex")) as client:
        events, close = await client.end()
        assert (codes(events), close) == (["unsupported_mode"], 1008)
        assert events[0]["error"]["type"] == "client_error"
        assert client.socket.close_reason == "unsupported_mode"
    async with lonely.client(url(lonely, "/ws/half_duplex/x")) as client:
        [event], close = await client.end()
        assert len(event.pop("trace_id")) == 32
        refusal = {"type": "error", "error": half_duplex, "code": "unsupported_protocol"}
        assert (event, close) == ({**refusal, "message": half_duplex}, 1008)
    for target in ("/ws/chat/x", "/v1/transcription/x", "/ws/half_duplex", "/v2/realtime?mode=audio"):
        response = await refused_upgrade(lonely, target)
        assert response.status_code == 404
        assert json.loads(response.body)["error"]["code"] == "not_found"
