"""The path and the events of `/ws/duplex`; aliases of fields are in `tests/ws_adapter/protocol/duplex`."""

import asyncio
import base64
import json
from pathlib import Path

import numpy as np
import pytest

from tests.conformance.support.client import Event
from tests.conformance.support.duplex_words import (
    BARE,
    LABEL,
    OMNI,
    begin,
    chunk,
    listens,
    prepare,
    speaks,
    stop,
    told,
)
from tests.conformance.support.match import TICKET_ID, Flag, Number, Text
from tests.conformance.support.stack import Stack, running_stack
from tests.conformance.support.words import TELLS, f32
from tests.support.scripted_engine import Script, listen, speak, turn_end

SOME_ID = Text("sess_[0-9a-f]{12}")
PREPARED: Event = {"type": "prepared", "prompt_length": 10, "session_id": LABEL}


@pytest.mark.parametrize("target", ["/ws/duplex", "/ws/duplex/", "/ws/duplex?x=1"])
async def test_bare_path(stack: Stack, target: str) -> None:
    async with stack.client(target) as client:
        assert await client.ask(prepare()) == {**PREPARED, "session_id": SOME_ID}
        assert await stop(client, label=None) == []


async def test_two_sockets_with_one_label_are_two_sessions(stack: Stack) -> None:
    async with stack.client(OMNI) as first, stack.client(OMNI) as second:
        assert (await begin(first, speak("One")))["session_id"] == LABEL
        assert (await begin(second, turn_end("Two")))["session_id"] == LABEL
        await asyncio.gather(first.send(chunk()), second.send(chunk()))
        assert await first.next() == speaks(1, "One", 1.0)
        assert await second.next() == speaks(1, "Two", 0.5, end_of_turn=True)
        assert await stop(first) == []
        await second.send(chunk())
        assert await second.next() == listens(2)


@pytest.mark.parametrize(
    ("target", "status"),
    [("/ws/duplex", 426), ("/ws/duplex/omni_k3f9", 426), ("/ws/duplex/a/b", 404), ("/ws/duplexx", 404)],
)
async def test_plain_get(stack: Stack, target: str, status: int) -> None:
    assert (await stack.request(target))[0] == status


async def test_recording_id_is_made_unique(stack: Stack, tmp_path: Path) -> None:
    with running_stack(stack.worker, options=("--recordings", str(tmp_path))) as recording:
        async with recording.client(OMNI) as first, recording.client(OMNI) as second:
            prepared = [await begin(first), await begin(second)]

    assert [event["session_id"] for event in prepared] == [LABEL, LABEL]
    ids = [event["recording_session_id"] for event in prepared]
    assert len(set(ids)) == 2
    assert all(recording_id.startswith(LABEL) for recording_id in ids)


@pytest.mark.parametrize("target", [OMNI, BARE])
async def test_queue_events(narrow: Stack, target: str) -> None:
    with running_stack(narrow.worker, options=("--queue-update-s", "0.1")) as brisk:
        async with brisk.client(OMNI) as holder, brisk.client(target) as client:
            await begin(holder)
            events = await client.take(3)
            await stop(holder)
            client.ignored = {"queue_update"}
            assert await client.next() == {"type": "queue_done"}

    waiting = {
        "position": 1,
        "estimated_wait_s": Number(),
        "eta_seconds": Number(),
        "estimate_is_guess": Flag(),
        "ticket_id": TICKET_ID,
        "queue_length": 1,
    }
    assert events == [
        {"type": "queued", **waiting},
        {"type": "queue_update", **waiting},
        {"type": "queue_update", **waiting},
    ]
    assert all(event["eta_seconds"] == event["estimated_wait_s"] for event in events)
    assert len({event["ticket_id"] for event in events}) == 1


async def test_prepare_reaches_the_worker(stack: Stack) -> None:
    """`prepared` lists ignored fields by their public names."""
    config = {
        **{"length_penalty": 1.5, "top_k": 7, "decode_mode": "greedy", "generate_audio": False},
        **{"max_slice_nums": 2, "beam": 4},
    }
    fields = {"max_slice_nums": 1, "deferred_finalize": True, "ref_audio": f32(16_000)}
    event = prepare(Script((TELLS,)), config=config, tts_ref_audio_base64=f32(16_000), **fields)
    async with stack.client(OMNI) as client:
        await client.expect("queue_done")
        prepared = await client.ask(event)
        await client.send(chunk())
        setup = told(await client.next())["setup"]

    assert setup["sees"] is True
    expected = {"length_penalty": 1.5, "top_k": 7, "greedy": True, "generate_audio": False}
    assert {name: setup["duplex"][name] for name in expected} == expected
    listed = ["config.beam", "ref_audio_base64", "tts_ref_audio_base64"]
    assert prepared == {**PREPARED, "unsupported_fields": listed}


async def test_client_diagnostic(stack: Stack) -> None:
    evil = {"type": "client_diagnostic", "drift_ms": 12, "note": "one\ntwo\u2028\x1b[31m"}
    too_long = {"type": "client_diagnostic", "note": "x" * 65_536}
    async with stack.client("/ws/duplex/omni_diagnostic") as client:
        await client.expect("queue_done")
        await client.send(json.dumps(evil, ensure_ascii=False).replace('{"type"', '{\n"type"'))
        assert (await client.ask(too_long))["code"] == "invalid_payload"
        assert (await client.ask(prepare()))["type"] == "prepared"

    lines = [line for line in stack.log.text.splitlines() if "the client has a diagnostic" in line]
    assert len(lines) == 1
    assert lines[0].isprintable()
    assert not any(said in stack.log.text for said in ("drift_ms", "two", "xxxx"))


async def test_result_figures(stack: Stack) -> None:
    async with stack.client(OMNI) as client:
        await begin(client, listen(), speak("Hello"), turn_end("you?"))
        await client.send(chunk(48_000))
        results = await client.take(3)

    assert [result["current_time"] for result in results] == [1, 2, 3]
    assert [result["kv_cache_length"] for result in results] == [22, 34, 46]
    for result in results:
        costs = ("cost_llm_ms", "cost_tts_prep_ms", "cost_tts_ms", "cost_token2wav_ms")
        assert result["cost_all_ms"] == pytest.approx(sum(result[name] for name in costs))
        assert result["wall_clock_ms"] > 0
        assert result["n_tokens"] == 1
    times = [result["server_send_ts"] for result in results]
    assert times == sorted(times)
    heard = np.frombuffer(base64.b64decode(results[1]["audio_data"], validate=True), "<f4")
    tone = 0.1 * np.sin(np.arange(24_000) * 2 * np.pi * 440 / 24_000)
    np.testing.assert_array_equal(heard, tone.astype("<f4"), "the very samples of the worker")
