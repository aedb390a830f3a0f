"""Whole conversations: a WebSocket client, the adapter, a gRPC worker that plays a script."""

import asyncio
import base64
import json

import numpy as np

from tests.support.scripted_engine import (
    TALK,
    ScriptedEngine,
    context_full,
    fails,
    hang,
    listen,
    running_worker,
    speak,
    turn_end,
)
from tests.ws_adapter.support.conversation import CLOSE, INIT, append, codes, kinds, pcm
from tests.ws_adapter.support.stage import ManualClock, client_of, running_adapter, until


async def test_example_flow() -> None:
    engine = ScriptedEngine(*TALK)
    async with running_worker(engine) as worker, running_adapter(worker.address) as stage:
        async with stage.client() as client:
            created = await client.begin(
                {"system_prompt": "Answer briefly.", "config": {"length_penalty": 1.2}}
            )
            assert created["session_id"].startswith("sess_")
            assert created["mode"] == "full_duplex"
            assert created["metrics"]["prompt_length"] == 10
            for number in range(5):
                await client.send(append(input_id=f"in-{number}"))

            await client.expect(
                "listen", "listen", "text", "audio", "text", "audio", "text", "audio", "listen"
            )

            deltas = client.events[2:]
            assert [e["text"] for e in deltas if e["kind"] == "text"] == ["Hello there", " how are", " you?"]
            assert [e["input_id"] for e in deltas if "chunk_index" in e] == [f"in-{n}" for n in range(5)]
            assert len({e["response_id"] for e in deltas[2:]}) == 1
            assert [len(base64.b64decode(e["audio"])) // 4 for e in deltas if e["kind"] == "audio"] == [
                24_000,
                24_000,
                12_000,
            ]
            assert deltas[-1]["reason"] == "turn_end"
            assert all(abs(e["server_send_ts"] - created["server_send_ts"]) < 60 for e in deltas)
            assert all("wall_clock_ms" in e["metrics"] for e in deltas if "chunk_index" in e)
            await client.send(CLOSE)
            events, code = await client.end()

        assert [(e["type"], e["reason"]) for e in events] == [("session.closed", "user_stop")]
        assert code == 1000
        setup = engine.session.setup
        assert setup.system_prompt == "Answer briefly."
        assert setup.duplex.length_penalty == np.float32(1.2)
        np.testing.assert_array_equal(engine.session.heard[1], np.full(16_000, 0.1, np.float32))


async def test_units_reach_the_worker_ahead_and_never_more_than_its_window() -> None:
    engine = ScriptedEngine(hang("generate"))
    async with client_of(engine) as client:
        await client.begin()
        await client.send(append(4.0))

        await until(lambda: ("finalize", 2) in engine.session.calls)
        assert set(engine.session.heard) == {1, 2}
        engine.session.release("generate", 1)
        await client.expect(*["listen"] * 4)

        assert set(engine.session.heard) == {1, 2, 3, 4}


async def test_lockstep_client() -> None:
    engine = ScriptedEngine(*TALK, repeat=True)
    async with client_of(engine) as client:
        await client.begin()
        for number in range(12):
            await client.send(append(input_id=f"in-{number}"))
            while (event := await client.next())["kind"] not in ("listen", "audio") or "reason" in event:
                assert event["type"] == "response.output.delta"
            assert event["input_id"] == f"in-{number}"
        await client.send(CLOSE)
        await client.rest()


async def test_client_that_sends_one_whole_utterance_and_waits() -> None:
    """One append, nothing more; the model answers only after some time of silence."""
    engine = ScriptedEngine(*[listen()] * 6, speak("Nine"), speak("teen"), turn_end("."))
    clock = ManualClock()
    async with running_worker(engine) as worker, running_adapter(worker.address, clock=clock) as stage:
        async with stage.client() as client:
            await client.begin({})
            await client.send(append(3.4, input_id="question"))
            await client.expect("listen", "listen", "listen")
            await clock.advance(1.25)
            await client.expect("listen")
            kinds_seen: list[str] = []
            while "audio" not in kinds_seen or kinds_seen[-1] != "listen":
                await clock.advance(1.0)
                sent = len(client.events)
                await client.next()
                kinds_seen += kinds(client.events[sent:])

            assert {e["input_id"] for e in client.events[2:]} == {"question"}
            assert client.events[-1]["reason"] == "turn_end"
            before = len(engine.session.heard)
            for _ in range(5):
                await clock.advance(1.0)
            # One unit of silence may have been on its way when the turn ended.
            assert len(engine.session.heard) <= before + 1
            await client.send(CLOSE)
            await client.rest()


async def test_init_before_queue_done_is_held() -> None:
    engine = ScriptedEngine(listen(), slots=1)
    async with running_worker(engine, slots=1) as worker, running_adapter(worker.address) as stage:
        async with stage.client() as first, stage.client() as second:
            await first.begin()
            await second.expect("session.queued")
            await second.send(INIT, append(input_id="early"))
            await first.send(CLOSE)
            await first.rest()
            await second.expect("session.queue_done", "session.created")
            assert (await second.expect("listen"))["input_id"] == "early"


async def test_force_listen_cancels_at_the_worker() -> None:
    engine = ScriptedEngine(speak("One"), speak("Two", hold="generate"))
    async with client_of(engine) as client:
        await client.begin()
        await client.send(append(2.0, input_id="a"))
        opened = (await client.expect("text", "audio"))["response_id"]
        await until(lambda: ("generate", 2) in [call[:2] for call in engine.session.calls])

        await client.send(append(input_id="b", force_listen=True))

        assert (await client.expect("listen"))["response_id"] == opened
        assert "response_id" not in await client.expect("listen")
        assert ("cancel", 2) in engine.session.calls
        assert ("generate", 3, True) in [call[:3] for call in engine.session.calls]


async def test_failed_units_and_the_third_in_a_row() -> None:
    engine = ScriptedEngine(fails(message="canary-4711"), repeat=True)
    async with client_of(engine) as client:
        await client.begin()
        await client.send(append(3.0))

        events, code = await client.end()

        assert kinds(events) == ["error:inference_error", "listen"] * 3 + ["session.closed"]
        assert events[-1]["reason"] == "backend_error"
        assert code == 1011
        assert "canary" not in json.dumps(events)


async def test_full_context() -> None:
    engine = ScriptedEngine(listen(), context_full())
    async with client_of(engine) as client:
        await client.begin()
        await client.send(append(3.0))

        events, code = await client.end()

        assert kinds(events) == ["listen", "listen", "session.closed"]
        assert events[-1]["reason"] == "context_full"
        assert code == 1000


async def test_session_without_audio_output() -> None:
    engine = ScriptedEngine(speak("Hello"), turn_end("!"))
    async with client_of(engine) as client:
        await client.begin({"use_tts": False})
        await client.send(append(2.0))

        await client.expect("text", "text", "listen")

        assert engine.session.setup.duplex.generate_audio is False


async def test_settings_that_the_worker_ignores_are_told() -> None:
    engine = ScriptedEngine(listen())
    voice = {"ref_audio_base64": pcm(1.0)}
    async with client_of(engine) as client:
        created = await client.begin({"voice": voice, "config": {"surprise": 1}, "tools": [{}]})

        unsupported = created["unsupported_fields"]
        assert unsupported[:2] == ["config.surprise", "tools"]
        assert "voice.ref_audio_base64" in unsupported or "voice" in unsupported


async def test_client_that_sends_everything_before_it_reads() -> None:
    async with client_of(ScriptedEngine(listen())) as client:
        await client.send(INIT, *[append(0.5, input_id=f"in-{n}") for n in range(20)], CLOSE)

        events, code = await client.end()

        # How much is answered before the close is read is a matter of time.
        assert [e["reason"] for e in events if e["type"] == "session.closed"] == ["user_stop"]
        assert events[-1]["type"] == "session.closed"
        assert codes(events) == []
        assert code == 1000


async def test_two_sessions_share_nothing() -> None:
    engine = ScriptedEngine(*TALK, slots=2)
    async with running_worker(engine) as worker, running_adapter(worker.address) as stage:
        async with stage.client() as first, stage.client() as second:
            ids = {(await first.begin())["session_id"], (await second.begin())["session_id"]}
            assert len(ids) == 2
            await asyncio.gather(first.send(append(5.0)), second.send(append(5.0)))
            for client in (first, second):
                await client.expect(*["listen"] * 2, *["text", "audio"] * 3, "listen")
            responses = [{e["response_id"] for e in c.events if "response_id" in e} for c in (first, second)]
            assert responses[0].isdisjoint(responses[1])


async def test_session_limit_and_timers_run_on_the_given_clock() -> None:
    clock = ManualClock()
    async with running_worker(ScriptedEngine(listen())) as worker:
        async with running_adapter(worker.address, clock=clock) as stage, stage.client() as client:
            await client.begin()
            await clock.advance(599)
            await client.send(append())
            await client.expect("listen")
            await clock.advance(1)

            events, code = await client.end()

            assert [e["reason"] for e in events] == ["timeout"]
            assert code == 1000
        assert clock.timers == 0


async def test_init_timeout() -> None:
    clock = ManualClock()
    async with running_worker(ScriptedEngine(listen())) as worker:
        async with running_adapter(worker.address, clock=clock) as stage, stage.client() as client:
            await client.expect("session.queue_done")
            await clock.advance(20)

            events, code = await client.end()

            assert [e["reason"] for e in events] == ["timeout"]
            assert "session_id" not in events[0]
            assert code == 1000


async def test_idle_session_makes_room_for_those_who_wait() -> None:
    clock = ManualClock()
    engine = ScriptedEngine(listen(), slots=1)
    async with running_worker(engine, slots=1) as worker:
        async with running_adapter(worker.address, clock=clock) as stage, stage.client() as client:
            await client.begin()
            await clock.advance(70)
            async with stage.client() as second:
                await second.expect("session.queued")
                await clock.advance(1)
                events, code = await client.end()
                assert (events[-1]["reason"], code) == ("timeout", 1000)
                while (await second.next())["type"] != "session.queue_done":
                    pass
