"""Clients of transcription that must keep working, each a faithful copy of its traffic."""

import json
import shutil
import wave
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.support.stack import Stack, running_stack
from tests.conformance.support.transcription_words import (
    COMMIT,
    CREATED,
    EMPTY,
    FINAL,
    PATH,
    RATE,
    TELLS,
    UPDATE,
    append,
    begin,
    delta,
    done,
    nothing,
    opened,
    samples,
)
from tests.conformance.support.vllm_program import run_program
from tests.support.scripted_engine import hang, listen, write

GREETING = Path(__file__).parents[3] / "clients/recordings/greeting.wav"


@pytest.fixture(scope="module")
def bare(transcriber: Stack) -> Iterator[Stack]:
    """`transcriber`, with transcription on the bare endpoint."""
    options = ("--default-realtime-mode", "transcription")
    with running_stack(transcriber.worker, options=options) as stack:
        yield stack


async def test_printed_program_loses_nothing_of_its_audio(bare: Stack, tmp_path: Path) -> None:
    """The program connects without query or headers, sends 4096-byte pieces unpaced, and only then reads."""
    shutil.copy(GREETING, tmp_path / "audio.wav")
    bare.worker.next(TELLS, repeat=True)

    said = await run_program(tmp_path, bare.url("/v1/realtime"), "scripted")

    units = json.loads(said[said.rindex('{"setup"') :])["units"]
    with wave.open(str(GREETING)) as file:
        assert samples(units) == file.getnframes()
    assert [unit["begins"] for unit in units].count(True) == 1
    assert units[-1]["ends"]


async def test_client_that_reads_only_at_the_end_never_deadlocks(transcriber: Stack) -> None:
    """Ten minutes of audio are sent before anything is read; every delta comes, in order."""
    transcriber.worker.next(write(" word"), repeat=True)
    async with transcriber.client(PATH) as client:
        frame = json.dumps(append(2048))
        await client.send(UPDATE, COMMIT, *[frame] * (600 * RATE // 2048), FINAL)
        assert await client.next() == CREATED
        events = await client.until("transcription.done")
    assert events[:-1] == [delta(" word")] * (len(events) - 1)
    assert events[-1]["text"] == " word" * (len(events) - 1)
    assert len(events) - 1 >= 150, "at most four seconds in each unit"


@pytest.mark.parametrize("target", ["/v1/realtime", "/v1/realtime/", "/v1/realtime?model=x&session_id=y"])
async def test_bare_endpoint(bare: Stack, target: str) -> None:
    async with bare.client(target, subprotocols=["realtime"]) as client:
        assert client.socket.subprotocol == "realtime"
        await opened(client, COMMIT, FINAL)
        assert await client.next() == EMPTY


async def test_bare_endpoint_in_another_mode(bare: Stack) -> None:
    async with bare.client("/v1/realtime?mode=audio") as client:
        assert (await client.next())["type"] == "session.queue_done"


async def test_microphone_never_sends_a_final_commit(narrow_transcriber: Stack) -> None:
    stack = narrow_transcriber
    stack.worker.next(write(" good"), write(" mor"), write("ning"), hang("generate"))
    async with stack.client(PATH) as client:
        await opened(client, COMMIT)
        for text in (" good", " mor", "ning"):
            await client.send(*[append(1600)] * 10)
            assert await client.next() == delta(text)
        await client.send(append())
        client.vanish()
        await stack.until(free_slots=1)


async def test_client_vanishes_while_it_waits(narrow_transcriber: Stack) -> None:
    stack = narrow_transcriber
    stack.worker.next(write(" go"))
    async with stack.client(PATH) as holder, stack.client(PATH) as client:
        await begin(holder)
        await opened(client, append(), COMMIT)
        await stack.until_queue(1)
        client.vanish()
        await stack.until_queue(0)


async def test_many_utterances_on_one_socket(transcriber: Stack) -> None:
    transcriber.worker.next(write(" yes"), repeat=True)
    async with transcriber.client(PATH) as client:
        await opened(client, FINAL, COMMIT)
        for _ in range(30):
            await client.send(append(), FINAL, COMMIT)
            text = (await client.until("transcription.done"))[-1]["text"]
            assert text in (" yes", " yes yes"), "its end may be a unit of its own"
        await client.send(FINAL, FINAL)
        assert await client.next() == EMPTY
        await nothing(client)


async def test_empty_commit_harms_no_other_socket(transcriber: Stack) -> None:
    transcriber.worker.next(write(" go"), write(" on"), listen())
    async with transcriber.client(PATH) as other, transcriber.client(PATH) as client:
        await begin(other)
        await opened(client, COMMIT, FINAL)
        assert await client.next() == EMPTY
        await client.socket.close()
        await other.send(append())
        assert await other.next() == delta(" on")
        await other.send(FINAL)
        assert await other.next() == done(" go on", completion=3)
