"""PersonaPlex through a real worker and a real adapter, in the public dialects; its weights are random."""

import asyncio
import base64
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from openai import AsyncOpenAI, NotFoundError
from openai.types.live import OutputAudioDeltaEvent, OutputTranscriptDeltaEvent
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

import antiphon
from antiphon.protocol.events import AudioDelta
from inference_service.checkpoints.moshi.folder import load
from inference_service.families.moshi.monologue import HOLD
from inference_service.families.moshi.runtime import GROUPED, MoshiRuntime
from inference_service.interface.engine import Done, End, Piece
from tests.cli.support.process import run_cli
from tests.e2e.conftest import running_adapter, running_worker
from tests.inference_service.engine.support import tiny_moshi
from tests.inference_service.engine.support.moshi_caller import Caller
from tests.support.patience import PATIENCE_S
from tests.support.schemas import Event

FRAME = 1920
QUIET, LOUD = np.zeros(16_000, np.float32), np.split(tiny_moshi.tone(2), 2)
SPOKEN_OVER = [QUIET, QUIET, *LOUD, QUIET]
"""A user who lets the model speak for two seconds and then speaks over it."""
GREEDY = {"decode_mode": "greedy"}
STEADY = ("--silence-tail-units", "0")
MODEL, PLAIN = "personaplex-tiny", "moshi-tiny"
ROLE, VOICE = "be a tree", "natm1"
DIALECTS = ("/ws/duplex/adx_a", "/v1/realtime?mode=audio", "/v1/realtime?mode=audio#earlier")
PICTURE = base64.b64encode(b"not looked at").decode()


@contextmanager
def served(folder: Path) -> Iterator[str]:
    with running_worker("--model", str(folder), slots=2) as worker:
        with running_adapter(worker.address, *STEADY) as server:
            yield server.address.replace("http", "ws")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_moshi.publish(tmp_path_factory.mktemp("models") / MODEL, personaplex=True, yields=True)


@pytest.fixture(scope="module")
def adapter(folder: Path) -> Iterator[str]:
    """An adapter of a PersonaPlex that falls silent when the user speaks over it."""
    with served(folder) as address:
        yield address


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An adapter of Moshi itself, which reads no prompt and has one voice."""
    with served(tiny_moshi.publish(tmp_path_factory.mktemp("models") / PLAIN)) as address:
        yield address


@pytest.fixture(scope="module")
def monologue(folder: Path) -> list[tuple[str, int, bool]]:
    with torch.inference_mode():
        where = MoshiRuntime(load(folder, torch.device("cpu"), torch.float32), 1)
        caller = Caller(where, prompt=ROLE, voice_id=VOICE, units=GROUPED)
        for sound in SPOKEN_OVER:
            caller.send(torch.from_numpy(sound))
            caller.work()
    seconds, text, samples = list[tuple[str, int, bool]](), "", 0
    for event in caller.told:
        match event:
            case Piece(text=more, audio=pcm):
                text, samples = text + more, samples + (len(pcm) if pcm is not None else 0)
            case Done(end=end):
                seconds.append((text, samples, end is End.TURN))
                text, samples = "", 0
    return seconds


def in_base64(sound: np.ndarray[tuple[int], np.dtype[np.float32]]) -> str:
    return base64.b64encode(sound.astype("<f4").tobytes()).decode()


def opener_of(dialect: str, **settings: object) -> Event:
    """Return the first event of a session with these settings; the earlier dialect renames `config`."""
    match dialect:
        case "/ws/duplex/adx_a":
            return {"type": "prepare", **settings}
        case "/v1/realtime?mode=audio":
            return {"type": "session.init", "payload": settings}
    return {"type": "session.update", "session": settings}


def append_of(dialect: str, sound: np.ndarray[tuple[int], np.dtype[np.float32]], **others: object) -> Event:
    match dialect:
        case "/ws/duplex/adx_a":
            return {"type": "audio_chunk", "audio_base64": in_base64(sound), **others}
        case "/v1/realtime?mode=audio":
            return {"type": "input.append", "input": {"audio": in_base64(sound), **others}}
    return {"type": "input_audio_buffer.append", "audio": in_base64(sound), **others}


def begins_unit(event: Event) -> bool:
    """Whether it is the first event that answers a second of input."""
    first = ("result", "response.output_audio.delta", "response.listen")
    return event["type"] in first or "chunk_index" in event


async def exchanged(url: str, opener: Event, appends: list[Event]) -> tuple[Event, list[list[Event]]]:
    """Return how a session was confirmed, and the events that answer each append of a second."""
    end = {"type": "stop" if opener["type"] == "prepare" else "session.close"}
    units: list[list[Event]] = []
    async with asyncio.timeout(PATIENCE_S), connect(url.partition("#")[0]) as client:
        await client.send(json.dumps(opener))
        told = json.loads(await client.recv())
        while told["type"] not in ("prepared", "session.created"):
            assert told["type"] != "error", told
            told = json.loads(await client.recv())
        for number, append in enumerate(appends):
            await client.send(json.dumps(append))
            while len(units) == number:
                event = json.loads(await client.recv())
                assert event["type"] != "error", event
                if begins_unit(event):
                    units.append([event])
                elif units:
                    units[-1].append(event)
        await client.send(json.dumps(end))
        async for frame in client:
            event = json.loads(frame)
            if event["type"] not in ("stopped", "session.closed"):
                units[-1].append(event)
    return told, units


def said(unit: list[Event]) -> tuple[str, int, bool]:
    sounds = [event.get("audio_data") or event.get("audio") or "" for event in unit]
    ended = any(event.get("end_of_turn") or event.get("reason") == "turn_end" for event in unit)
    samples = sum(len(base64.b64decode(sound)) // 4 for sound in sounds)
    return "".join(event.get("text", "") for event in unit), samples, ended


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.sample("/ws/duplex/adx_a", "/v1/realtime[?]mode=audio")
async def test_user_speaks_over_the_model_in_a_dialect_of_seconds(
    adapter: str, monologue: list[tuple[str, int, bool]], dialect: str
) -> None:
    """Its text is the inner monologue, and it falls silent by itself: nothing is interrupted or forced."""
    settings = {"instructions": ROLE, "ref_audio_path": VOICE, "config": GREEDY}
    appends = [append_of(dialect, sound) for sound in SPOKEN_OVER]
    appends[0] = append_of(dialect, QUIET, video_frames=[PICTURE])
    told, units = await exchanged(f"{adapter}{dialect}", opener_of(dialect, **settings), appends)
    answers = [said(unit) for unit in units]

    assert not told.get("unsupported_fields")
    assert answers == monologue
    assert [ended for _, _, ended in answers].count(True) == 1
    assert answers[1][1] == 13 * FRAME
    assert answers[3][0] == "", "no word is said over the user"
    first = units[0][0]
    assert first.get("metrics", first)["ignored_frames"] == 1
    held = [unit[0].get("metrics", unit[0])["kv_cache_length"] for unit in units]
    assert held[-1] == max(held) == tiny_moshi.WINDOW, "the conversation is longer than the window"


@pytest.mark.parametrize("path", ["/ws/duplex", "/ws/duplex/omni_a", "/v1/realtime?mode=video"])
async def test_camera_is_refused_in_one_sentence(adapter: str, path: str) -> None:
    opener = {"type": "prepare"} if "duplex" in path else {"type": "session.init", "payload": {}}
    told = ""
    async with asyncio.timeout(PATIENCE_S), connect(f"{adapter}{path}") as client:
        await client.send(json.dumps(opener))
        with suppress(ConnectionClosed):
            while True:
                told = str(await client.recv())

    assert "the model served here cannot run this mode" in told
    assert client.close_code == 1008


async def test_chat_completion_is_refused_in_one_sentence(adapter: str) -> None:
    with pytest.raises(NotFoundError, match="a model of /v1/models that takes such sessions"):
        await sdk(adapter).chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hello"}]
        )


async def converse(url: str, **how: object) -> bytes:
    async with (
        asyncio.timeout(PATIENCE_S),
        antiphon.connect(url) as client,
        client.duplex(settings=GREEDY, seed=1, **how) as session,  # type: ignore[arg-type]
    ):
        await session.send_audio(QUIET)
        async for event in session:
            if isinstance(event, AudioDelta):
                return event.samples.tobytes()
    raise AssertionError("no answer")


async def test_role_and_voice_are_settings(adapter: str) -> None:
    one = await converse(adapter, instructions="you are no tree")
    other = await converse(adapter, instructions=ROLE)
    voiced = await converse(adapter, instructions=ROLE, voice=VOICE)
    assert one != other
    assert other != voiced


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_settings_unsupported_by_moshi_are_reported(plain: str, dialect: str) -> None:
    reference = in_base64(QUIET)
    settings = {"instructions": ROLE, "ref_audio_base64": reference, "max_slice_nums": 2}
    opener = opener_of(dialect, config={"length_penalty": 1.2, "listen_top_k": 3}, **settings)
    told, _ = await exchanged(f"{plain}{dialect}", opener, [])

    lacking = {name.rpartition(".")[2].removesuffix("_base64") for name in told["unsupported_fields"]}
    assert lacking - {"system_prompt", "instructions"} == {
        "length_penalty", "listen_top_k", "max_slice_nums", "ref_audio",
    }  # fmt: skip
    assert lacking & {"system_prompt", "instructions"}


def sdk(adapter: str) -> AsyncOpenAI:
    return AsyncOpenAI(api_key="none", base_url=f"{adapter.replace('ws', 'http', 1)}/v1")


def spoken_over(rate: int) -> str:
    sound = np.concatenate([np.zeros(2 * rate, np.float32), tiny_moshi.tone(2, rate)])
    return base64.b64encode((sound * 32_767).astype("<i2").tobytes()).decode()


MOST_FRAMES = 25 + HOLD + 6
"""Frames of two seconds, of the hold until the turn ends, and of the silence in the codec."""


async def test_user_speaks_over_the_model_in_live(adapter: str) -> None:
    text, voiced, silent = "", 0, 0
    audio = {"format": {"type": "audio/pcm", "rate": 16_000}, "output": {"voice": VOICE}}
    settings = {"model": MODEL, "audio": audio, "instructions": ROLE}
    async with asyncio.timeout(PATIENCE_S), sdk(adapter).live.connect() as live:
        await live.send({"type": "session.start", "session": settings})
        started = await live.recv()
        assert started.type == "session.started", started
        assert started.session.audio.output.voice == VOICE
        await live.send({"type": "session.input_audio.append", "audio": spoken_over(16_000)})
        while not (text and voiced) or silent < HOLD + 25:
            match event := await live.recv():
                case OutputAudioDeltaEvent():
                    sound = base64.b64decode(event.delta)
                    assert len(sound) == 2 * 1280
                    voiced, silent = (voiced + 1, 0) if any(sound) else (voiced, silent + 1)
                case OutputTranscriptDeltaEvent():
                    text += event.delta
                case _:
                    assert event.type not in ("error", "info"), event

    # The clock feeds silence until the sound has come, to which the model speaks too. One that did not hear
    # the tone would speak through its two seconds as well.
    assert voiced < 25 + MOST_FRAMES


async def test_user_speaks_over_the_model_in_realtime(adapter: str) -> None:
    sizes, words, statuses, transcript = list[int](), "", list[str](), ""
    async with asyncio.timeout(PATIENCE_S), sdk(adapter).realtime.connect(model=MODEL) as realtime:
        created = await realtime.recv()
        assert created.type == "session.created"
        assert created.session.audio.input.turn_detection.type == "semantic_vad"
        session = {"type": "realtime", "instructions": ROLE, "audio": {"output": {"voice": VOICE}}}
        await realtime.session.update(session=session)
        await realtime.response.create()
        await realtime.input_audio_buffer.append(audio=spoken_over(24_000))
        while len(statuses) < 2:
            event = await realtime.recv()
            assert event.type != "error", event
            if event.type == "session.updated":
                assert event.session.audio.output.voice == VOICE
                assert not getattr(event.session, "unsupported_fields", None)
            elif event.type == "response.done":
                statuses.append(event.response.status)
            elif event.type == "response.output_audio_transcript.delta":
                words += event.delta
            elif event.type == "response.output_audio_transcript.done":
                transcript += event.transcript
            elif event.type == "response.output_audio.delta":
                sizes.append(len(base64.b64decode(event.delta)))

    assert statuses == ["failed", "completed"], "it holds no chats, and was not interrupted"
    assert set(sizes) == {2 * FRAME}
    assert len(sizes) <= MOST_FRAMES
    assert words == transcript != ""


async def test_realtime_items_unsupported_by_model_are_rejected(adapter: str) -> None:
    picture = {"type": "input_image", "image_url": f"data:image/png;base64,{PICTURE}"}
    sound = {"type": "input_audio", "audio": PICTURE}
    told = []
    async with asyncio.timeout(PATIENCE_S), sdk(adapter).realtime.connect(model=MODEL) as realtime:
        for part in (picture, sound):
            item = {"type": "message", "role": "user", "content": [part]}
            await realtime.send({"type": "conversation.item.create", "item": item})  # type: ignore[arg-type]
        while len(told) < 2:
            event = await realtime.recv()
            told += [event.error.message] if event.type == "error" else []

    assert "the model sees no pictures; send text" in told[0]
    assert "the model hears only the microphone; send text" in told[1]


def test_unusable_folder_ends_the_worker_with_one_sentence_that_names_the_file(tmp_path: Path) -> None:
    voices = tiny_moshi.publish(tmp_path / "published", personaplex=True) / "voices"
    shutil.rmtree(voices)
    done = run_cli("worker", "--model", str(voices.parent), "--listen", "127.0.0.1:0")
    assert done.code == 2
    (sentence,) = (line for line in done.err.splitlines() if not line.startswith("{"))
    assert str(voices) in sentence
