"""Two models behind one adapter: a session can do what the pool of its model can, and queues there."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from inference_service.interface.setups import Mode
from tests.support.scripted_engine import INFO, ScriptedEngine, listen, running_worker, write
from tests.ws_adapter.support.conversation import CLOSE, INIT, Event
from tests.ws_adapter.support.stage import Stage, running_adapter
from ws_adapter.access.rights import Rights
from ws_adapter.protocol.core import config
from ws_adapter.session.catalogue import SessionCatalogue
from ws_adapter.worker.registry import Registry

WRITER = replace(
    INFO,
    name="writer",
    modes=frozenset({Mode.CHAT, Mode.TRANSCRIBE}),
    voice_ids=frozenset({"amber"}),
    calls_tools=True,
)
SPEAKER = replace(
    INFO, name="speaker", modes=frozenset({Mode.AUDIO, Mode.CHAT}), voice_ids=frozenset({"birch"})
)
TOOL = {"type": "function", "name": "look_up", "description": "", "parameters": {"type": "object"}}
CHAT_TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}


@asynccontextmanager
async def served(*infos: Any, slots: int = 2, **options: Any) -> AsyncIterator[Stage]:
    """One worker for each model."""
    one, other = infos or (WRITER, SPEAKER)
    plays = {WRITER.name: write("Seven.")}
    engines = [
        ScriptedEngine(plays.get(info.name, listen()), slots=slots, info=info, repeat=True)
        for info in (one, other)
    ]
    async with running_worker(engines[0], slots=slots) as first:
        async with running_worker(engines[1], slots=slots) as second:
            async with running_adapter(first.address, second.address, **options) as stage:
                await stage.until(free_slots=2 * slots)
                yield stage
                await stage.until(free_slots=2 * slots)


def changed(**session: Any) -> Event:
    return {"type": "session.update", "session": {"type": "realtime", **session}}


def voice(name: str) -> Event:
    return {"audio": {"output": {"voice": name}}}


SEMANTIC = {"audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}}


async def test_realtime_session_can_do_what_the_pool_of_its_model_can() -> None:
    """The attack on the union: ask one model for what only the other can do."""
    required = {"tools": [TOOL], "tool_choice": "required"}
    async with served() as stage:
        for model, session, param in (
            ("writer", {"tools": [TOOL]}, None),
            ("writer", voice("amber"), None),
            ("writer", voice("birch"), "session.audio.output.voice"),
            ("writer", required, None),
            ("speaker", required, "session.tool_choice"),
            ("speaker", voice("birch"), None),
            ("speaker", voice("amber"), "session.audio.output.voice"),
            ("speaker", SEMANTIC, None),
        ):
            async with stage.client(f"/v1/realtime?model={model}") as talk:
                await talk.expect("session.created", "conversation.created")
                await talk.send(changed(**session))
                if param is None:
                    await talk.expect("session.updated")
                else:
                    assert (await talk.expect("error"))["error"]["param"] == param


async def test_realtime_session_leaves_out_what_the_pool_of_its_model_cannot() -> None:
    async with served() as stage:
        for model, tools, detection in (("writer", 1, "server_vad"), ("speaker", 0, "semantic_vad")):
            async with stage.client(f"/v1/realtime?model={model}") as talk:
                await talk.expect("session.created", "conversation.created")
                await talk.send(changed(tools=[TOOL], **SEMANTIC))
                session = (await talk.expect("session.updated"))["session"]
            assert len(session["tools"]) == tools
            assert session["audio"]["input"]["turn_detection"]["type"] == detection


async def test_response_and_client_secret_can_ask_for_what_the_pool_of_the_model_can() -> None:
    async with served() as stage:
        for model, wrong, param in (
            ("speaker", {"tools": [TOOL], "tool_choice": "required"}, "session.tool_choice"),
            ("writer", voice("birch"), "session.audio.output.voice"),
        ):
            async with stage.client(f"/v1/realtime?model={model}") as talk:
                await talk.expect("session.created", "conversation.created")
                await talk.send({"type": "response.create", "response": wrong})
                assert (await talk.expect("error"))["error"]["param"].startswith("response.")
            body = json.dumps({"session": {"type": "realtime", "model": model, **wrong}}).encode()
            status, _, told = await stage.request("/v1/realtime/client_secrets", "POST", body=body)
            assert status == 400
            assert told["error"]["param"].startswith(param)


async def test_live_session_gets_models_and_voices_of_pools_that_hear_and_speak() -> None:
    async with served() as stage:
        for session, code in (
            ({"model": "writer"}, "model_not_found"),
            ({"model": "speaker", **voice("amber")}, "invalid_value"),
            ({"model": "speaker", **voice("birch")}, None),
        ):
            async with stage.client("/v1/live/sessions") as talk:
                await talk.send({"type": "session.start", "session": session})
                if code is None:
                    started = await talk.expect("session.started")
                    assert started["session"]["audio"]["output"]["voice"] == "birch"
                else:
                    assert (await talk.expect("error"))["error"]["code"] == code


async def test_duplex_session_gets_voices_of_its_pool() -> None:
    async with served() as stage:
        for path, granted, created in (
            ("/v1/realtime?mode=audio", "session.queue_done", "session.created"),
            ("/ws/duplex/adx_1", "queue_done", "prepared"),
        ):
            async with stage.client(path) as talk:
                await talk.expect(granted)
                for name, answer in (("amber", "error"), ("birch", created)):
                    given: Event = {"ref_audio_path": name}
                    init = {**INIT, "payload": {"voice": given}}
                    await talk.send(init if "mode" in path else {"type": "prepare", **given})
                    await talk.expect(answer)


async def test_chat_turn_gets_tools_of_the_pool_of_its_model() -> None:
    turn = {"messages": [{"role": "user", "content": "Hello."}], "tools": [CHAT_TOOL]}
    async with served() as stage:
        for model, answer in (("speaker", "error"), ("writer", "response.output.delta")):
            async with stage.client("/v1/realtime?mode=chat") as talk:
                await talk.begin({"model": model})
                await talk.send({"type": "input.append", "input": turn})
                await talk.expect(answer)


async def test_models_without_the_mode_of_a_path_are_refused_at_once() -> None:
    ears = replace(INFO, name="ears", modes=frozenset({Mode.TRANSCRIBE}))
    async with served(ears, SPEAKER) as stage:
        async with stage.client("/v1/realtime?model=ears") as talk:
            assert (await talk.expect("error"))["error"]["code"] == "invalid_model"
        async with stage.client("/v1/transcription") as talk:
            await talk.expect("session.created")
            await talk.send({"type": "session.update", "model": "speaker"})
            assert (await talk.expect("error"))["code"] == "model_not_found"


async def test_each_model_is_listed_with_its_capabilities() -> None:
    async with served() as stage:
        told = {model["id"]: model for model in (await stage.request("/v1/models"))[2]["data"]}
        assert told["writer"]["modes"] == ["chat", "transcription"]
        assert (told["writer"]["voices"], told["speaker"]["voices"]) == (["amber"], ["birch"])
        assert (told["writer"]["tools"], told["speaker"]["tools"]) == (True, False)
        assert (told["writer"]["semantic_vad"], told["speaker"]["semantic_vad"]) == (False, True)
        speaker = {"id": "speaker", "modes": ["audio", "chat"]}
        writer = {"id": "writer", "modes": ["chat", "transcription"]}
        assert (await stage.request("/page/about.json"))[2]["models"] == [speaker, writer]


def test_catalogue_without_a_worker_is_unknown_but_for_the_models_of_a_key() -> None:
    unknown, limited = (
        SessionCatalogue(Registry(()), config.Mode.CHAT, Rights(models=models))()
        for models in (None, frozenset({"writer"}))
    )
    assert unknown is None
    assert limited is not None
    assert limited.models == {"writer"}


async def test_pool_can_do_what_each_of_its_workers_can() -> None:
    """A session may get any of them."""
    async with served(SPEAKER, replace(SPEAKER, voice_ids=frozenset())) as stage:
        (told,) = (await stage.request("/v1/models"))[2]["data"]
        assert told["voices"] == []
        async with stage.client("/v1/realtime?model=speaker") as talk:
            await talk.expect("session.created", "conversation.created")
            await talk.send(changed(**voice("birch")))
            await talk.expect("error")


SEEING = replace(INFO, name="seeing", modes=frozenset({Mode.AUDIO, Mode.VIDEO}), sees=True)


async def test_session_moved_to_other_pool_queues_behind_waiting_sessions() -> None:
    """The attack: take a slot of an idle pool, then name the model of the busy one, and be served first."""
    async with served(SPEAKER, SEEING, slots=1) as stage:
        video, audio = "/v1/realtime?mode=video", "/v1/realtime?mode=audio"
        async with stage.client(video) as holder, stage.client(video) as waiting:
            await holder.begin({"model": "seeing"})
            await waiting.expect("session.queued")
            async with stage.client(audio) as mover:
                await mover.expect("session.queue_done")
                await mover.send({**INIT, "payload": {"model": "seeing"}})
                await stage.until_queue(2)
                queue = (await stage.request("/api/queue"))[2]["items"]
                assert [item["request_type"] for item in queue] == ["omni_duplex", "audio_duplex"]

                await holder.send(CLOSE)
                await waiting.begin({"model": "seeing"})
                await waiting.send(CLOSE)
                await mover.expect_until("session.created")


async def test_realtime_session_waits_in_the_pool_of_the_model_of_its_url() -> None:
    """The session takes no slot of another chat pool to skip the queue of its own."""
    chats = replace(INFO, name="chats", modes=frozenset({Mode.CHAT}))
    async with served(chats, SPEAKER, slots=1) as stage:
        async with stage.client("/v1/realtime?model=speaker") as holder:
            await holder.expect("session.created")
            async with stage.client("/v1/realtime?model=speaker"):
                await stage.until_queue(1)
                assert (await stage.request("/readyz"))[2]["free_slots"] == 1
                async with stage.client("/v1/realtime?model=chats") as other:
                    await other.expect("session.created")


async def test_realtime_session_without_a_slot_in_time_is_refused() -> None:
    async with served(slots=1, realtime_wait_s=1.0) as stage:
        async with stage.client("/v1/realtime?model=speaker") as first:
            await first.expect("session.created")
            async with stage.client("/v1/realtime?model=speaker") as second:
                (refused,), close = await second.end()
                assert (refused["error"]["code"], refused["error"]["type"]) == (
                    "server_overloaded",
                    "server_error",
                )
                assert (close, second.socket.close_reason) == (1013, "server_error.server_overloaded")


async def test_session_returning_its_slot_queues_behind_waiting_sessions() -> None:
    """The attack: ask for a turn right after the last one, and never let go of the slot."""
    turn = {"type": "input.append", "input": {"messages": [{"role": "user", "content": "Hello."}]}}
    async with served(WRITER, replace(SPEAKER, modes=frozenset({Mode.AUDIO})), slots=1) as stage:
        chat = "/v1/realtime?mode=chat"
        async with stage.client(chat) as greedy, stage.client(chat) as waiting:
            await greedy.begin()
            await waiting.expect("session.queued")
            await greedy.send(turn, turn, turn)
            await waiting.expect_until("session.queue_done")
            await waiting.send(INIT)
            await waiting.expect("session.created")
