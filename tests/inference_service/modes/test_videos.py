"""Videos over the wire, also those that are made to do harm: whoever else is there goes on being answered."""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.interface.setups import Video
from inference_service.rpc.messages.requests import turn_input
from inference_service.session.units import Stream
from inference_service.video import process
from tests.inference_service.modes.test_turns import ABLE, CHATS, engine, film, message, text, turn
from tests.inference_service.support.caller import Caller, channel_to, duplex, soon, until, until_free
from tests.support.hostile_videos import huge_in_disguise, many_tracks
from tests.support.scripted_engine import running_worker
from tests.support.videos import numbered, short, tone, video

FIELD = "turn.messages[0].content[0].video"
SHORT = common.SamplingParams(max_new_tokens=4, temperature=1, top_p=1)


def test_video_reaches_the_engine() -> None:
    read = turn_input(turn(message(text("What?"), film(b"a", 3), film(b"b"))), ABLE, CHATS)
    words, *videos = read.messages[0].parts
    assert words == "What?"
    assert [(it.data, it.stack_frames) for it in videos if isinstance(it, Video)] == [(b"a", 3), (b"b", 1)]


Processes = list[subprocess.Popen[bytes]]


@pytest.fixture
def stopped(started: Processes, monkeypatch: pytest.MonkeyPatch) -> Processes:
    """As `started`, and each of them hangs from its start."""
    start = process._started

    def hanging(*arguments: Any) -> subprocess.Popen[bytes]:
        made = start(*arguments)
        made.send_signal(signal.SIGSTOP)
        return made

    monkeypatch.setattr(process, "_started", hanging)
    return started


class Pair:
    """Two sessions of one worker: one sends videos, the other is its neighbour."""

    def __init__(self, address: str, stranger: Caller, neighbour: Caller) -> None:
        self.address = address
        self.stranger = stranger
        self.neighbour = neighbour
        self._units = 0

    async def hang(self, stopped: Processes) -> None:
        """The stranger sends a video, whose decoder then hangs."""
        await self.stranger.send_unit(1, turn(message(film(short()))))
        await until(lambda: stopped)

    async def answered(self, units: int) -> None:
        """The neighbour has so many seconds heard, each of which is answered."""
        for _ in range(units):
            self._units += 1
            answers = await self.neighbour.unit(self._units, duplex())
            assert answers.done.end in (pb.UNIT_END_LISTEN, pb.UNIT_END_CHUNK, pb.UNIT_END_TURN)


@asynccontextmanager
async def pair() -> AsyncIterator[Pair]:
    async with running_worker(engine) as worker, channel_to(worker.address) as channel:
        stranger, neighbour = await Caller(channel).open(), await Caller(channel).open()
        await stranger.configure(mode=pb.SESSION_MODE_CHAT, seed=1, sampling=SHORT)
        await neighbour.configure(mode=pb.SESSION_MODE_AUDIO, seed=1)
        try:
            yield Pair(worker.address, stranger, neighbour)
        finally:
            for call in (*stranger.calls.values(), *neighbour.calls.values()):
                call.cancel()


async def test_video_is_seen_and_heard() -> None:
    async with pair() as both:
        data = video(numbered(20), rate=10, sound=tone(2.0))
        silent = await both.stranger.unit(1, turn(message(text("What?"), film(data))))
        spoken = await both.stranger.unit(2, turn(message(text("What?"), film(data)), omni_mode=True))
        await both.answered(1)
        assert silent.done.end == spoken.done.end == pb.UNIT_END_TURN
        assert silent.prefill.prefilled.vision_slices == spoken.prefill.prefilled.vision_slices == 2
        assert silent.done.usage.input_audio_tokens == 0
        assert spoken.done.usage.input_audio_tokens == 20


BOMBS: dict[str, tuple[Callable[[], bytes], str]] = {
    "pixels in disguise": (huge_in_disguise, "must be at most 4096 x 4096, not 8192 x 8192."),
    "tracks": (many_tracks, "must have at most 32 tracks, not 301."),
    "noise": (lambda: b"\0\0\0\x10ftypisom" + os.urandom(1 << 20), ""),
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.sample("tracks")
async def test_bomb_is_refused_while_the_neighbour_is_answered(name: str) -> None:
    make, told = BOMBS[name]
    data = make()
    async with pair() as both:
        await both.stranger.send_unit(1, turn(message(film(data)), omni_mode=True))
        attacked = asyncio.create_task(both.stranger.answers(1))
        await both.answered(3)
        error = (await attacked).prefill.error
        after = await both.stranger.unit(2, turn())
        assert (error.reason, error.field) == ("VIDEO_INVALID", FIELD)
        assert error.message.endswith(told)
        assert after.done.end == pb.UNIT_END_TURN
        await both.answered(1)


async def test_hanging_decoder_delays_no_other_session_and_is_killed(
    stopped: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair() as both:
        await both.hang(stopped)
        await both.answered(5)
        assert stopped[0].returncode is None
        monkeypatch.setattr(process, "STALL_S", 0.1)
        error = (await both.stranger.answers(1)).prefill.error
        assert error.message == f"{FIELD} could not be decoded in time."
        assert stopped[0].returncode == -signal.SIGKILL
        assert (await both.stranger.unit(2, turn())).done.end == pb.UNIT_END_TURN


async def test_neighbours_are_answered_when_a_decoder_crashes(stopped: Processes) -> None:
    async with pair() as both:
        await both.hang(stopped)
        stopped[0].kill()
        await both.answered(2)
        error = (await both.stranger.answers(1)).prefill.error
        assert (error.reason, error.message) == ("VIDEO_INVALID", f"{FIELD} could not be decoded.")
        assert (await both.stranger.unit(2, turn(message(text("Hi"))))).done.end == pb.UNIT_END_TURN


async def test_client_that_leaves_during_decoding_leaves_nothing_behind(stopped: Processes) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    async with pair() as both:
        before = len(os.listdir("/proc/self/fd"))
        await both.hang(stopped)
        both.stranger.calls[Stream.PREFILL].cancel()
        await soon(until_free(both.address, 1))
        await until(lambda: stopped[0].returncode is not None)
        await until(lambda: len(os.listdir("/proc/self/fd")) <= before)
        await both.answered(2)
    assert descriptors <= before


async def test_worker_that_stops_leaves_no_decoder_behind(stopped: Processes) -> None:
    async with pair() as both:
        await both.hang(stopped)
    await until(lambda: stopped[0].returncode is not None)
