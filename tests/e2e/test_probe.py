"""`antiphon probe` and `antiphon bench` against a real adapter and worker, and a server with faults."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, serve

from antiphon.audio.samples import INPUT_RATE_HZ
from antiphon.audio.wav import read_wav
from antiphon_command.bench.crowd import measure
from tests.cli.support.process import Outcome, run_cli
from tests.e2e.conftest import FOLDER, until_all_free
from tests.support.long import long
from tests.support.patience import START_S


def antiphon(*arguments: str) -> Outcome:
    return run_cli(*arguments, timeout_s=START_S)


@pytest.mark.parametrize(
    ("dialect", "mode", "speaks"),
    [
        ("current", "audio", '"kind": "audio"'),
        ("current", "video", '"kind": "audio"'),
        ("earlier", "audio", '"end_of_turn": true'),
        ("duplex", "video", '"end_of_turn": true'),
        ("chat", "audio", '"type": "done"'),
        ("transcription", "audio", '"type": "transcription.done"'),
        ("live", "audio", '"type": "session.output_transcript.delta"'),
        ("realtime", "audio", '"type": "response.output_audio_transcript.delta"'),
    ],
)
@pytest.mark.sample("current-audio-*", "live-*", "chat-*")
def test_our_server_keeps_the_rules(
    adapter: str, dialect: str, mode: str, speaks: str, tmp_path: Path
) -> None:
    record = tmp_path / "events.jsonl"
    options = ("--dialect", dialect, "--mode", mode, "--record", str(record), "--url", adapter)

    probed = antiphon("probe", str(FOLDER / "name.wav"), *options)

    assert probed.code == 0, probed.out + probed.err
    assert probed.out.splitlines()[-1] == "no violation"
    assert speaks in probed.out
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert {line["direction"] for line in lines} == {"sent", "received", "closed"}
    assert lines[-1]["event"]["code"] == 1000
    times = [line["t"] for line in lines]
    assert times == sorted(times)


async def faulty(socket: ServerConnection) -> None:
    """Says that a session is there before there is a slot."""
    created = {"type": "session.created", "session_id": "s", "mode": "full_duplex"}
    await socket.send(json.dumps(created | {"metrics": {}, "usage": {}}))
    await socket.send(json.dumps({"type": "session.closed", "session_id": "s", "reason": "timeout"}))


async def impatient(socket: ServerConnection) -> None:
    """Speaks in every whole second that it is given, and waits for the rest of a short one."""

    async def say(name: str, **fields: object) -> None:
        await socket.send(json.dumps({"type": name, "session_id": "s", "metrics": {}, **fields}))

    await say("session.queue_done")
    await socket.recv()
    await say("session.created", mode="full_duplex", usage={})
    heard = spoken = 0
    while spoken < 3:
        given = json.loads(await socket.recv())["input"]
        heard += len(base64.b64decode(given["audio"])) // 4
        while heard >= (spoken + 1) * INPUT_RATE_HZ:
            answer = {"kind": "audio", "response_id": "r", "input_id": given["input_id"], "audio": ""}
            await say("response.output.delta", **answer, chunk_index=spoken)
            spoken += 1
    ending = {"kind": "listen", "response_id": "r", "input_id": given["input_id"], "reason": "turn_end"}
    await say("response.output.delta", **ending)
    await socket.recv()
    await say("session.closed", reason="user_stop")


@pytest.mark.parametrize(
    ("server", "violation"),
    [
        (faulty, "session.created before session.queue_done"),
        (impatient, "a short append caused a gap of a second in the answer"),
    ],
)
async def test_broken_rule_is_named_and_exit_code_5(
    server: Callable[[ServerConnection], Awaitable[None]], violation: str
) -> None:
    async with serve(server, "127.0.0.1", 0, compression=None) as listening:
        url = f"ws://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        probed = await asyncio.to_thread(antiphon, "probe", "--url", url)

    assert probed.code == 5, probed.out + probed.err
    assert f"!! {violation}" in probed.out
    assert "!! there is no default voice" in probed.out
    assert probed.out.splitlines()[-1] == "2 violations of the protocol"


def test_no_server_is_exit_code_4() -> None:
    probed = antiphon("probe", "--url", "ws://127.0.0.1:9")
    assert probed.code == 4
    assert "antiphon serve" in probed.err


@long
async def test_bench_counts_every_second_and_every_answer(adapter: str) -> None:
    await until_all_free(adapter)

    figures = await measure(adapter, None, "audio", read_wav(FOLDER / "name.wav"), 2, 12.0)

    assert (figures.sessions, figures.units, figures.errors, figures.queued) == (2, 24, 0, 0)
    assert figures.first_audio_p50_ms is not None, "nobody was answered aloud"
    assert figures.p50_ms is not None
    assert figures.p99_ms is not None
    assert 0 < figures.p50_ms <= figures.p99_ms


def test_bench_says_when_there_are_not_enough_slots(adapter: str) -> None:
    crowd = antiphon("bench", "--sessions", "40", "--duration", "1", "--url", adapter)
    assert crowd.code == 1
    assert "conversations had to wait for a slot" in crowd.err


def test_bench_in_json(adapter: str) -> None:
    crowd = antiphon("bench", "--sessions", "1", "--duration", "2", "--json", "--url", adapter)
    assert crowd.code == 0, crowd.err
    (figures,) = [json.loads(line) for line in crowd.out.splitlines()]
    assert (figures["sessions"], figures["units"], figures["queued"]) == (1, 2, 0)
