"""Which URL means which dialect: every row of section 1 of the protocol."""

import json
from dataclasses import replace
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.support.scripted_engine import ScriptedEngine, listen, running_worker
from tests.ws_adapter.support.conversation import codes
from tests.ws_adapter.support.stage import Client, Stage, running_adapter
from ws_adapter.protocol.core.config import Mode
from ws_adapter.protocol.core.kind import Kind
from ws_adapter.protocol.wire.errors import CloseCode, ErrorCode
from ws_adapter.web.routes import Dialect, Misdirected, Page, Selection, find_page, select

ALL: frozenset[Mode] = frozenset(Mode)
DUPLEX = frozenset({Mode.AUDIO, Mode.VIDEO})


def chosen(
    target: str,
    *offered: str,
    default: Mode = Mode.VIDEO,
    served: frozenset[Mode] | None = ALL,
    opens: frozenset[Mode] = frozenset(),
) -> Selection:
    selection = select(target, offered, default, served, opens)
    assert isinstance(selection, Selection), selection
    return selection


def refused(target: str, *offered: str, served: frozenset[Mode] | None = ALL) -> Misdirected:
    refusal = select(target, offered, Mode.VIDEO, served)
    assert isinstance(refusal, Misdirected), refusal
    return refusal


@pytest.mark.parametrize("mode", [Mode.AUDIO, Mode.VIDEO, Mode.CHAT])
def test_rule_1_mode_decides(mode: Mode) -> None:
    selection = chosen(f"/v1/realtime?mode={mode}")

    assert selection == Selection(Dialect.REALTIME, mode, None, announces_slot=True)


def test_realtime_with_a_model_that_holds_no_chats_is_a_session_of_audio() -> None:
    url = "/v1/realtime?model=moshi"
    found = select(url, (), Mode.VIDEO, DUPLEX, holds_chats=lambda model: model != "moshi")

    assert found == Selection(Dialect.REALTIME_GA, Mode.AUDIO, announces_slot=False, model="moshi")
    assert isinstance(found, Selection)
    assert found.kind is Kind.REALTIME


TRANSCRIBING = Selection(Dialect.TRANSCRIPTION, Mode.TRANSCRIPTION, None, announces_slot=False)


@pytest.mark.parametrize("query", ["mode=transcription", "mode=transcription&intent=chat&model=m"])
def test_rule_1_mode_of_transcription(query: str) -> None:
    assert chosen(f"/v1/realtime?{query}", "realtime") == TRANSCRIBING


@pytest.mark.parametrize("query", ["mode=transcription", "intent=transcription"])
def test_rules_1_and_2_transcription_that_nobody_serves(query: str) -> None:
    refusal = refused(f"/v1/realtime?{query}", served=DUPLEX)

    assert refusal.dialect is Dialect.TRANSCRIPTION
    assert refusal.verdict.code is ErrorCode.UNSUPPORTED_MODE
    assert refusal.verdict.close is CloseCode.POLICY_VIOLATION
    assert "mode=transcription is not served here; choose another by ?mode=audio" in refusal.verdict.message


@pytest.mark.parametrize("mode", ["Audio", "VIDEO", "audio ", "x"])
def test_rule_1_any_other_mode_is_unsupported(mode: str) -> None:
    refusal = refused(f"/v1/realtime?mode={mode}")

    assert refusal.dialect is Dialect.REALTIME
    assert refusal.verdict.code is ErrorCode.UNSUPPORTED_MODE
    assert refusal.verdict.close is CloseCode.POLICY_VIOLATION
    assert f"mode={mode} is not served" in refusal.verdict.message
    assert "?mode=audio" in refusal.verdict.message


def test_rule_1_comes_before_all_others() -> None:
    selection = chosen("/v1/realtime?mode=audio&intent=transcription&model=m", "realtime")

    assert selection.mode is Mode.AUDIO


@pytest.mark.parametrize("query", ["mode=audio&mode=video", "mode=&mode=audio"])
def test_rule_1_of_two_modes_the_first_counts(query: str) -> None:
    assert chosen(f"/v1/realtime?{query}").mode is Mode.AUDIO


@pytest.mark.parametrize(
    "query", ["call_id=rtc_1", "call_id=", "call_id=rtc_1&model=m", "intent=transcription&call_id=1"]
)
def test_call_id_is_refused_by_name(query: str) -> None:
    """It would open a session of another model than the call's."""
    found = select(f"/v1/realtime?{query}", (), Mode.VIDEO, None)

    assert isinstance(found, Misdirected)
    assert found.dialect is Dialect.REALTIME_GA
    assert found.verdict.message.startswith("call_id: ")


def test_mode_goes_before_call_id() -> None:
    assert chosen("/v1/realtime?mode=audio&call_id=rtc_1").mode is Mode.AUDIO


def test_rule_2_intent_of_transcription() -> None:
    """There the client's first frame may choose OpenAI's events."""
    expected = replace(TRANSCRIBING, may_be_ga=True)
    assert chosen("/v1/realtime?intent=transcription&model=m", "realtime") == expected


def test_rule_2_other_intents_mean_nothing() -> None:
    assert chosen("/v1/realtime?intent=conversation").mode is Mode.VIDEO


@pytest.mark.parametrize(
    ("target", "offered"),
    [
        ("/v1/realtime", ["realtime"]),
        ("/v1/realtime?mode=", ["realtime", "openai-insecure-api-key.k"]),
        ("/v1/realtime?model=gpt-realtime", []),
        ("/v1/realtime?model=", []),
    ],
)
def test_rule_4_openai_clients_are_served_in_their_dialect(target: str, offered: list[str]) -> None:
    found = chosen(target, *offered)

    assert (found.dialect, found.mode, found.kind) == (Dialect.REALTIME_GA, Mode.CHAT, Kind.REALTIME)
    assert found.model == ("gpt-realtime" if "gpt" in target else "")


@pytest.mark.parametrize("mode", ["audio", "video", "chat"])
def test_a_mode_goes_before_a_model_and_a_subprotocol(mode: str) -> None:
    found = chosen(f"/v1/realtime?model=gpt-realtime&mode={mode}", "realtime")

    assert (found.dialect, found.mode) == (Dialect.REALTIME, mode)


def test_rule_4_does_not_hold_where_transcription_is_the_default() -> None:
    found = chosen("/v1/realtime?model=whisper", "realtime", default=Mode.TRANSCRIPTION)

    assert found == TRANSCRIBING


TALKS, WRITES = frozenset({Mode.CHAT}), frozenset({Mode.TRANSCRIPTION})


@pytest.mark.parametrize("default", list(Mode))
@pytest.mark.parametrize(
    ("query", "opens", "dialect"),
    [
        ("", TALKS, Dialect.REALTIME_GA),
        ("?model=m", TALKS, Dialect.REALTIME_GA),
        ("?intent=transcription", TALKS, Dialect.REALTIME_GA),
        ("", WRITES, Dialect.TRANSCRIPTION_GA),
        ("?model=m", WRITES, Dialect.TRANSCRIPTION_GA),
        ("?intent=transcription", WRITES, Dialect.TRANSCRIPTION_GA),
        ("", TALKS | WRITES, Dialect.REALTIME_GA),
        ("?intent=transcription", TALKS | WRITES, Dialect.TRANSCRIPTION_GA),
        ("?mode=audio", TALKS | WRITES, Dialect.REALTIME),
    ],
)
def test_rule_3_a_client_secret_says_which_of_openais_sessions_it_opens(
    query: str, opens: frozenset[Mode], dialect: Dialect, default: Mode
) -> None:
    assert chosen(f"/v1/realtime{query}", default=default, opens=opens).dialect is dialect


def test_rule_3_holds_where_a_client_secret_opens_something() -> None:
    assert chosen("/ws/chat", opens=TALKS).dialect is Dialect.CHAT


def test_client_secret_for_what_nobody_serves_is_refused_in_openais_words() -> None:
    refusal = select("/v1/realtime", [], Mode.VIDEO, DUPLEX, WRITES)

    assert isinstance(refusal, Misdirected)
    assert refusal.dialect is Dialect.TRANSCRIPTION_GA
    assert refusal.verdict.code is ErrorCode.UNSUPPORTED_MODE


@pytest.mark.parametrize("default", list(Mode))
@pytest.mark.parametrize(
    "target", ["/v1/realtime", "/v1/realtime?mode=", "/v1/realtime?autostart=1&client_id=x"]
)
def test_rule_5_the_default_mode(target: str, default: Mode) -> None:
    assert chosen(target, "chat", default=default).mode is default


def test_long_mode_is_not_repeated_whole() -> None:
    assert len(refused("/v1/realtime?mode=" + "x" * 5000).verdict.message) < 200


@pytest.mark.parametrize(
    ("target", "served", "dialect"),
    [
        ("/v1/realtime?mode=chat", DUPLEX, Dialect.REALTIME),
        ("/v1/realtime?mode=audio", frozenset({Mode.CHAT}), Dialect.REALTIME),
        ("/ws/chat", DUPLEX, Dialect.CHAT),
        ("/ws/duplex/adx_1", frozenset({Mode.CHAT}), Dialect.DUPLEX),
    ],
)
def test_mode_that_no_worker_serves(target: str, served: frozenset[Mode], dialect: Dialect) -> None:
    refusal = refused(target, served=served)

    assert refusal.dialect is dialect
    assert refusal.verdict.code is ErrorCode.UNSUPPORTED_MODE
    assert refusal.verdict.close is CloseCode.POLICY_VIOLATION
    assert f"choose another by ?mode={min(served)}" in refusal.verdict.message


def test_mode_that_is_not_served_either_is_not_advised() -> None:
    refusal = refused("/ws/chat", served=frozenset({Mode.AUDIO}))

    assert refusal.verdict.message.endswith("choose another by ?mode=audio")


def test_whether_a_worker_sees_is_its_own_affair() -> None:
    assert chosen("/ws/duplex", served=frozenset({Mode.AUDIO})).mode is Mode.VIDEO


@pytest.mark.parametrize("target", ["/v1/realtime?mode=chat", "/ws/chat", "/ws/duplex", "/v1/realtime"])
def test_without_a_worker_a_client_may_wait_for_one(target: str) -> None:
    assert chosen(target, served=None)


@pytest.mark.parametrize("target", ["/ws/chat", "/ws/chat/", "/ws/chat?mode=audio&model=x"])
def test_chat_path(target: str) -> None:
    assert chosen(target, "realtime") == Selection(Dialect.CHAT, Mode.CHAT, None, announces_slot=False)


@pytest.mark.parametrize("target", ["/v1/transcription", "/v1/transcription/?mode=audio&intent=x&model=m"])
def test_transcription_path(target: str) -> None:
    assert chosen(target, "realtime") == TRANSCRIBING


def test_transcription_path_that_nobody_serves() -> None:
    assert select("/v1/transcription", [], Mode.VIDEO, DUPLEX) is None


@pytest.mark.parametrize("target", ["/v1/transcription", "/v1/realtime?mode=transcription"])
def test_without_a_worker_who_wants_a_transcription_comes_back(target: str) -> None:
    refusal = refused(target, served=None)

    assert refusal.dialect is Dialect.TRANSCRIPTION
    assert refusal.verdict.code is ErrorCode.SERVICE_UNAVAILABLE
    assert refusal.verdict.close is CloseCode.TRY_AGAIN_LATER


@pytest.mark.parametrize(
    ("name", "label", "mode"),
    [
        ("omni_k3f9", "omni_k3f9", Mode.VIDEO),
        ("adx_1", "adx_1", Mode.AUDIO),
        ("audio_duplex_1", "audio_duplex_1", Mode.AUDIO),
        ("ADX_1", "ADX_1", Mode.VIDEO),
        ("xadx_1", "xadx_1", Mode.VIDEO),
        ("a.b~c!d", "abcd", Mode.VIDEO),
        ("%61dx_%2F..%20x", "adx_x", Mode.AUDIO),
        ("%C3%A9", None, Mode.VIDEO),
        ("...", None, Mode.VIDEO),
        ("y" * 500, "y" * 128, Mode.VIDEO),
    ],
)
def test_label_of_a_duplex_session(name: str, label: str | None, mode: Mode) -> None:
    assert chosen(f"/ws/duplex/{name}") == Selection(Dialect.DUPLEX, mode, label, announces_slot=True)


@pytest.mark.parametrize("target", ["/ws/duplex", "/ws/duplex/", "/ws/duplex?session_id=adx_1"])
def test_bare_duplex(target: str) -> None:
    assert chosen(target) == Selection(Dialect.DUPLEX, Mode.VIDEO, None, announces_slot=False)


def test_duplex_is_chosen_by_its_path_alone() -> None:
    assert chosen("/ws/duplex/adx_1?mode=video&model=m&intent=transcription", "realtime").mode is Mode.AUDIO


def test_kinds() -> None:
    assert chosen("/v1/realtime?mode=audio").kind is Kind.AUDIO_DUPLEX
    assert chosen("/v1/realtime?mode=video").kind is Kind.OMNI_DUPLEX
    assert chosen("/ws/duplex/adx_1").kind is Kind.AUDIO_DUPLEX
    assert chosen("/ws/duplex").kind is Kind.OMNI_DUPLEX
    assert chosen("/v1/realtime?mode=chat").kind is Kind.CHAT
    assert chosen("/ws/chat").kind is Kind.CHAT
    assert chosen("/v1/transcription").kind is Kind.TRANSCRIPTION


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
    assert select(target, [], Mode.VIDEO, ALL) is None
    assert find_page(target) is None


@pytest.mark.parametrize(
    ("target", "file"),
    [("", "index.html"), ("/", "index.html"), ("/?x=1", "index.html"), ("/page/client/a.js", "client/a.js")],
)
def test_web_page_is_no_websocket(target: str, file: str) -> None:
    assert select(target, [], Mode.VIDEO, ALL) is None
    assert find_page(target) == (Page.FILE, file)


@pytest.mark.parametrize("target", ["/v1/realtime/?mode=audio", "/ws/duplex/adx_1/"])
def test_slash_at_the_end_changes_nothing(target: str) -> None:
    assert chosen(target).mode is Mode.AUDIO


def url(stage: Stage, target: str) -> str:
    return stage.address.replace("http://", "ws://") + target


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("/v1/realtime?mode=half_duplex", "unsupported_mode"),
    ],
)
async def test_refusals_by_url_come_after_the_upgrade(target: str, code: str) -> None:
    async with (
        running_adapter("127.0.0.1:1", wait=False) as stage,
        stage.client(url(stage, target)) as client,
    ):
        events, close = await client.end()

        assert codes(events) == [code]
        assert events[0]["error"]["type"] == "client_error"
        assert close == 1008
        assert client.socket.close_reason == code


TRANSCRIPTION = [
    "/v1/transcription",
    "/v1/realtime?mode=transcription",
    "/v1/realtime?intent=transcription",
]


@pytest.mark.parametrize("target", TRANSCRIPTION)
async def test_transcription_is_refused_in_its_own_words(target: str) -> None:
    async with (
        running_adapter("127.0.0.1:1", wait=False) as stage,
        stage.client(url(stage, target)) as client,
    ):
        events, close = await client.end()

        message = "no worker is ready to take a session; try again later"
        assert events == [{"type": "error", "error": message, "code": "service_unavailable"}]
        assert close == 1013


async def test_half_duplex_is_refused_after_the_upgrade() -> None:
    async with (
        running_adapter("127.0.0.1:1", wait=False) as stage,
        stage.client(url(stage, "/ws/half_duplex/x")) as client,
    ):
        events, close = await client.end()
        assert len(events[0].pop("trace_id")) == 32

        message = "half duplex is not served here; use /ws/duplex"
        refusal = {"type": "error", "error": message, "code": "unsupported_protocol", "message": message}
        assert (events, close) == ([refusal], 1008)


@pytest.mark.parametrize(
    "target", ["/ws/chat/x", "/v1/transcription/x", "/ws/half_duplex", "/v2/realtime?mode=audio"]
)
async def test_websocket_at_an_unknown_path(target: str) -> None:
    async with running_adapter("127.0.0.1:1", wait=False) as stage:
        with pytest.raises(InvalidStatus) as refused:
            await connect(url(stage, target))
        assert refused.value.response.status_code == 404
        assert json.loads(refused.value.response.body)["error"]["code"] == "not_found"


@pytest.mark.parametrize(
    ("target", "first"),
    [
        ("/v1/realtime?mode=audio", "session.queue_done"),
        ("/v1/realtime/?mode=audio&session_id=x&autostart=1", "session.queue_done"),
        ("/ws/duplex/adx_1", "queue_done"),
        ("/ws/duplex/adx_1/", "queue_done"),
    ],
)
async def test_slot_is_told_in_the_words_of_the_dialect(target: str, first: str) -> None:
    async with running_worker(ScriptedEngine(listen())) as worker, running_adapter(worker.address) as stage:
        headers = {"Authorization": "Bearer ignored"}
        async with stage.client(url(stage, target), additional_headers=headers) as client:
            assert (await client.next())["type"] == first


async def test_bare_duplex_tells_no_slot_that_was_free() -> None:
    async with (
        running_worker(ScriptedEngine(listen(), slots=1), slots=1) as worker,
        running_adapter(worker.address) as stage,
    ):
        async with stage.client(url(stage, "/ws/duplex")) as client:
            await stage.until(free_slots=0)
            await client.send({"type": "nonsense"})
            assert (await client.next())["code"] == "unknown_event"


async def test_default_mode_is_an_option() -> None:
    async with running_worker(ScriptedEngine(listen())) as worker:
        async with running_adapter(worker.address, default_realtime_mode="audio") as stage:
            async with stage.client(url(stage, "/v1/realtime")) as client:
                await client.begin()
                _, _, queue = await stage.request("/api/queue")
                assert [task["request_type"] for task in queue["running_tasks"]] == ["audio_duplex"]


@pytest.mark.parametrize(
    ("offered", "selected"),
    [
        (["realtime"], "realtime"),
        (["x", "realtime", "openai-insecure-api-key.k"], "realtime"),
        (["x"], None),
        (None, None),
    ],
)
async def test_subprotocol(offered: list[str] | None, selected: str | None) -> None:
    async with running_worker(ScriptedEngine(listen())) as worker, running_adapter(worker.address) as stage:
        subprotocols: Any = offered
        async with connect(stage.url, subprotocols=subprotocols, compression=None) as socket:
            assert socket.subprotocol == selected
            await Client(socket).begin()


async def test_subprotocol_is_selected_also_for_duplex() -> None:
    async with running_worker(ScriptedEngine(listen())) as worker, running_adapter(worker.address) as stage:
        subprotocols: Any = ["realtime"]
        async with connect(url(stage, "/ws/duplex/adx_1"), subprotocols=subprotocols) as socket:
            assert socket.subprotocol == "realtime"


async def test_compression_is_never_negotiated() -> None:
    async with running_worker(ScriptedEngine(listen())) as worker, running_adapter(worker.address) as stage:
        async with connect(stage.url, compression="deflate") as socket:
            assert socket.response is not None
            assert "Sec-WebSocket-Extensions" not in socket.response.headers
            await Client(socket).begin()
