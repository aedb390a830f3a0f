"""Section 4.2: the path, every event and every alias of `/ws/duplex`."""

import asyncio
import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.typing import Subprotocol

from tests.conformance.support.client import Event
from tests.conformance.support.duplex_words import (
    AUDIO,
    BARE,
    LABEL,
    OMNI,
    STOP,
    begin,
    chunk,
    error,
    jpeg,
    listens,
    picture,
    prepare,
    speaks,
    stop,
    stopped,
    told,
    video_frame,
)
from tests.conformance.support.match import TICKET_ID, Flag, Number, Text
from tests.conformance.support.stack import Stack, running_stack
from tests.conformance.support.words import TELLS, f32
from tests.support.scripted_engine import Script, listen, speak, turn_end

SOME_ID = Text("sess_[0-9a-f]{12}")


# -------------------------------------------------------------------------------------------- the path


@pytest.mark.parametrize(
    ("target", "label"),
    [
        ("/ws/duplex/omni_k3f9", "omni_k3f9"),
        ("/ws/duplex/omni_k3f9/", "omni_k3f9"),
        ("/ws/duplex/omni_k3f9?client_id=7&autostart", "omni_k3f9"),
        ("/ws/duplex/om%20n%2Fi..%C3%A9_k%0A3f9", "omni_k3f9"),
        ("/ws/duplex/" + "x" * 200, "x" * 128),
        ("/ws/duplex/%21%21", SOME_ID),
    ],
)
async def test_label_is_cleaned(stack: Stack, target: str, label: str | Text) -> None:
    """4.2: characters outside `[A-Za-z0-9_-]` are removed, 128 kept, empty means generated."""
    async with stack.client(target) as client:
        assert await begin(client) == {"type": "prepared", "prompt_length": 10, "session_id": label}


@pytest.mark.parametrize("target", ["/ws/duplex", "/ws/duplex/", "/ws/duplex?x=1"])
async def test_bare_path(stack: Stack, target: str) -> None:
    """4.2: bare `/ws/duplex` sends no `queue_done` unless it waited; its id is generated."""
    async with stack.client(target) as client:
        assert await client.ask(prepare()) == {"type": "prepared", "prompt_length": 10, "session_id": SOME_ID}
        assert await stop(client, label=None) == []


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ("/ws/duplex/adx_1", "audio_duplex"),
        ("/ws/duplex/audio_duplex_1", "audio_duplex"),
        ("/ws/duplex/omni_1", "omni_duplex"),
        ("/ws/duplex/my_adx_1", "omni_duplex"),
        ("/ws/duplex/adx", "omni_duplex"),
        ("/ws/duplex", "omni_duplex"),
    ],
)
async def test_prefix_decides_the_kind(narrow: Stack, target: str, kind: str) -> None:
    """4.2: prefix `adx_` or `audio_duplex_` is `audio_duplex`, anything else `omni_duplex`."""
    async with narrow.client(target) as client:
        await begin(client, is_bare=target == BARE)
        _, queue = await narrow.request("/api/queue")
        assert [task["request_type"] for task in queue["running_tasks"]] == [kind]


async def test_two_sockets_with_one_label_are_two_sessions(stack: Stack) -> None:
    """4.2: the label never identifies state."""
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
    """Section 1: an unknown path is 404, a plain GET on a WebSocket path 426, both in HTTP."""
    assert (await stack.request(target))[0] == status


async def test_subprotocol_and_compression(stack: Stack) -> None:
    """Section 1: `realtime` is selected if offered, else none; compression is never negotiated."""
    offered = [Subprotocol("other"), Subprotocol("realtime")]
    async with stack.client(OMNI, subprotocols=offered, compression="deflate") as client:
        assert client.socket.subprotocol == "realtime"
        assert client.socket.protocol.extensions == []
    async with stack.client(OMNI, subprotocols=[Subprotocol("other")]) as client:
        assert client.socket.subprotocol is None
        assert await begin(client) == {"type": "prepared", "prompt_length": 10, "session_id": LABEL}


async def test_recording_id_is_made_unique(stack: Stack, tmp_path: Path) -> None:
    """4.2: the recording id is made unique; `recording_session_id` in `prepared`."""
    with running_stack(stack.worker, options=("--recordings", str(tmp_path))) as recording:
        async with recording.client(OMNI) as first, recording.client(OMNI) as second:
            prepared = [await begin(first), await begin(second)]

    assert [event["session_id"] for event in prepared] == [LABEL, LABEL]
    ids = [event["recording_session_id"] for event in prepared]
    assert len(set(ids)) == 2
    assert all(recording_id.startswith(LABEL) for recording_id in ids)


# ------------------------------------------------------------------------------------------- the queue


@pytest.mark.parametrize("target", [OMNI, BARE])
async def test_queue_events(narrow: Stack, target: str) -> None:
    """Section 2: `queued` once, `queue_update` while waiting, `queue_done`; all fields, and `eta_seconds`."""
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


async def test_queue_done_comes_without_a_wait(stack: Stack) -> None:
    """Section 2: always on `/ws/duplex/{id}`, also without a wait."""
    async with stack.client(OMNI) as client:
        assert await client.next() == {"type": "queue_done"}


# --------------------------------------------------------------------------------------------- prepare


async def setup_of(stack: Stack, event: Event) -> tuple[dict[str, Any], Event]:
    """What the worker was set up with by this `prepare`, and `prepared`."""
    async with stack.client(OMNI) as client:
        await client.expect("queue_done")
        prepared = await client.ask(event)
        assert prepared["type"] == "prepared"
        await client.send(chunk())
        return told(await client.next())["setup"], prepared


@pytest.mark.parametrize("name", ["system_prompt", "prefix_system_prompt", "instructions"])
async def test_prepare_prompt(stack: Stack, name: str) -> None:
    """`system_prompt` (`prefix_system_prompt`, `instructions`) str O."""
    setup, prepared = await setup_of(stack, {"type": "prepare", name: Script((TELLS,)).as_prompt()})

    assert prepared == {"type": "prepared", "prompt_length": 10, "session_id": LABEL}
    assert setup["sees"] is True


async def test_prepare_may_be_empty(stack: Stack) -> None:
    """Every field of `prepare` is optional; `null` equals absence."""
    async with stack.client(OMNI) as client:
        await client.expect("queue_done")
        names = ("system_prompt", "config", "ref_audio_base64", "ref_audio_path", "max_slice_nums")
        prepared = await client.ask({"type": "prepare", **dict.fromkeys(names)})
        assert prepared == {"type": "prepared", "prompt_length": 10, "session_id": LABEL}


async def test_prepare_config(stack: Stack) -> None:
    """`config` O, as 3.6; unknown keys are in `unsupported_fields`; `deferred_finalize` is accepted."""
    config = {"length_penalty": 1.5, "top_k": 7, "decode_mode": "greedy", "max_slice_nums": 2, "beam": 4}
    event = prepare(Script((TELLS,)), config=config, max_slice_nums=1, deferred_finalize=True)

    setup, prepared = await setup_of(stack, event)

    duplex = setup["duplex"]
    assert (duplex["length_penalty"], duplex["top_k"], duplex["greedy"]) == (1.5, 7, True)
    assert prepared["unsupported_fields"] == ["config.beam"]


@pytest.mark.parametrize("name", ["ref_audio_base64", "ref_audio"])
async def test_prepare_voice(stack: Stack, name: str) -> None:
    """`ref_audio_base64` (`ref_audio`), `tts_ref_audio_base64` O; not honoured is listed, by public name."""
    voice = {name: f32(16_000), "tts_ref_audio_base64": f32(16_000)}

    _, prepared = await setup_of(stack, prepare(Script((TELLS,)), **voice))

    assert prepared["unsupported_fields"] == ["ref_audio_base64", "tts_ref_audio_base64"]


async def test_prepare_voice_must_be_registered(stack: Stack) -> None:
    """`ref_audio_path` O: an id of the registry; unknown: `invalid_payload`, and it may be corrected."""
    async with stack.client(OMNI) as client:
        await client.expect("queue_done")
        assert await client.ask(prepare(ref_audio_path="/etc/passwd")) == error(
            "invalid_payload", 'ref_audio_path: expected the id of a registered voice, or none, got "passwd"'
        )
        assert (await client.ask(prepare()))["type"] == "prepared"


async def test_prepare_without_speech(stack: Stack) -> None:
    """3.6 `generate_audio` false: the worker is told, and results have no audio."""
    event = prepare(Script((TELLS,)), config={"generate_audio": False})

    setup, _ = await setup_of(stack, event)

    assert setup["duplex"]["generate_audio"] is False


# ----------------------------------------------------------------------------------------- audio_chunk


@pytest.mark.parametrize("name", ["audio_base64", "audio", "audio_data"])
async def test_audio_chunk_audio(stack: Stack, name: str) -> None:
    """`audio_base64` (`audio`, `audio_data`) str R f32."""
    async with stack.client(OMNI) as client:
        await begin(client, TELLS)
        await client.send({"type": "audio_chunk", name: f32(16_000, 0.2)})
        assert told(await client.next())["units"][0]["audio"] == [0.2] * 4


async def frames_of(stack: Stack, *events: Event) -> list[list[str]]:
    """Names of the pictures in each unit that the worker was given."""
    async with stack.client(OMNI) as client:
        await begin(client, listen(), TELLS)
        await client.send(*events, *([chunk()] if len(events) == 1 else []))
        results = await client.take(2)
        return [unit["frames"] for unit in told(results[-1])["units"]]


def named(*shades: int) -> list[str]:
    """What the worker calls the pictures of these shades."""
    return [hashlib.sha256(picture(shade)).hexdigest()[:8] for shade in shades]


@pytest.mark.parametrize("name", ["frame_base64_list", "video_frames", "frames"])
async def test_audio_chunk_frames(stack: Stack, name: str) -> None:
    """`frame_base64_list` (`video_frames`, `frames`): base64 or an object that holds it."""
    event = chunk() | {name: [jpeg(1), {"data": jpeg(2)}, {"base64": jpeg(3)}]}

    assert await frames_of(stack, event) == [named(1, 2, 3), []]


@pytest.mark.parametrize("name", ["video_frame", "frame_base64"])
async def test_audio_chunk_single_frame(stack: Stack, name: str) -> None:
    """Single `video_frame`, `frame_base64`."""
    assert await frames_of(stack, chunk() | {name: jpeg(1)}) == [named(1), []]


async def test_audio_chunk_force_listen(stack: Stack) -> None:
    """`force_listen` O: the unit is a listen; the next is not."""
    async with stack.client(OMNI) as client:
        await begin(client, speak("One"), speak("Two"))
        await client.send(chunk(force_listen=True), chunk())
        assert await client.take(2) == [listens(1), speaks(2, "Two", 1.0)]


async def test_audio_chunk_unknown_fields(stack: Stack) -> None:
    """Section 1: unknown fields in events are ignored; `null` equals absence."""
    async with stack.client(OMNI) as client:
        await begin(client)
        await client.send(chunk(seq=7, session_id="x", frames=None, force_listen=None, max_slice_nums=None))
        assert await client.next() == listens(1)


# ----------------------------------------------------------------------------------------- video_frame


@pytest.mark.parametrize("name", ["frame_base64", "frame", "image", "data", "video_frame"])
async def test_video_frame(stack: Stack, name: str) -> None:
    """`frame_base64` (`frame`, `image`, `data`, `video_frame`): no answer, held for the next unit."""
    frame = {"type": "video_frame", name: jpeg(1)}

    assert await frames_of(stack, frame, chunk(), chunk()) == [named(1), []]


async def test_video_frame_newest_four(stack: Stack) -> None:
    """Held for the next unit, newest 4; those of the chunk itself are newer."""
    frames = [video_frame(shade) for shade in range(6)]
    second = chunk(frame_base64_list=[jpeg(9)])

    assert await frames_of(stack, *frames, chunk(), *frames, second) == [
        named(2, 3, 4, 5),
        named(3, 4, 5, 9),
    ]


async def test_video_frame_missing(stack: Stack) -> None:
    """7.2: a required field that is missing, `null` or empty."""
    async with stack.client(OMNI) as client:
        await begin(client)
        for fields in ({}, {"frame_base64": None}, {"image": ""}):
            refused = await client.ask({"type": "video_frame", **fields})
            assert refused == error("missing_field", "Missing frame_base64")


async def test_frames_in_an_audio_session_are_ignored(stack: Stack) -> None:
    """6.5: frames in `audio_duplex` are ignored undecoded."""
    async with stack.client(AUDIO) as client:
        await begin(client, TELLS)
        too_many = json.dumps(chunk(frames=["no picture"] * 9))
        await client.send({"type": "video_frame", "frame": "no picture"}, too_many)
        content = told(await client.next())
        assert content["setup"]["sees"] is False
        assert content["units"][0]["frames"] == []


# ------------------------------------------------------------------------- pause, stop, client_diagnostic


@pytest.mark.parametrize(
    ("given", "answered"), [({}, 60), ({"timeout": 0.2}, 1), ({"timeout": 30}, 30), ({"timeout": 9999}, 300)]
)
async def test_pause_timeout(stack: Stack, given: Event, answered: float) -> None:
    """`timeout` num O, default 60, clamped to 1..300."""
    async with stack.client(OMNI) as client:
        await begin(client)
        assert await client.ask({"type": "pause", **given}) == {"type": "paused", "timeout": answered}


async def test_client_diagnostic(stack: Stack) -> None:
    """No answer; one line in the log, without a word of what is in it; at most 64 KiB; in any state."""
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


async def test_stop(stack: Stack) -> None:
    """`stopped{session_id, reason}`, close 1000."""
    async with stack.client(OMNI) as client:
        await begin(client)
        await client.send(STOP)
        assert await client.end() == ([stopped("user_stop")], 1000)


# ---------------------------------------------------------------------------------------------- results


async def test_result(stack: Stack) -> None:
    """Exactly one `result` per unit, speaking or listening, in order; all figures on each."""
    async with stack.client(OMNI) as client:
        await begin(client, listen(), speak("Hello", " there"), turn_end(" you?"), listen())
        await client.send(chunk(32_000), chunk(), chunk())
        assert await client.take(4) == [
            listens(1),
            speaks(2, "Hello there", 1.0),
            speaks(3, " you?", 0.5, end_of_turn=True),
            listens(4),
        ]
        assert await stop(client) == []


async def test_result_figures(stack: Stack) -> None:
    """`current_time` counts units, `kv_cache_length` grows, `cost_all_ms` is the sum, clocks are real."""
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


async def test_result_audio(stack: Stack) -> None:
    """`audio_data` is f32 at 24 kHz: the very samples of the worker."""
    async with stack.client(OMNI) as client:
        await begin(client, speak("La"))
        await client.send(chunk())
        data = base64.b64decode((await client.next())["audio_data"], validate=True)

    tone = 0.1 * np.sin(np.arange(24_000) * 2 * np.pi * 440 / 24_000)
    np.testing.assert_array_equal(np.frombuffer(data, "<f4"), tone.astype("<f4"))


async def test_result_of_speech_without_samples(stack: Stack) -> None:
    """`audio_data` f32 or null: a speaking unit without samples."""
    async with stack.client(OMNI) as client:
        await begin(client, speak("Hm", seconds=0.0))
        await client.send(chunk())
        assert await client.next() == speaks(1, "Hm", 0)
