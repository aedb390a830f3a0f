"""The benchmark of attacks measures through real processes, and its attackers send what they say."""

import asyncio
import base64
import json
import math
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.adapter import document
from benchmarks.neighbours import figures
from benchmarks.neighbours.attacks import ATTACKS, chats, frames, pictures, recordings, voices
from benchmarks.neighbours.attacks.client import AttackClient, Disconnected
from benchmarks.neighbours.measure import Outcome, Side
from benchmarks.neighbours.neighbour import Neighbour, Unit
from tests.support.long import long
from tests.support.scripted_engine import TALK, ScriptedEngine, running_worker
from tests.ws_adapter.support.stage import running_adapter, until
from ws_adapter.options import AdapterOptions
from ws_adapter.protocol.media.images import read_frame
from ws_adapter.protocol.media.reference_voice import LONGEST_S
from ws_adapter.protocol.media.wav import read_wav

OPTIONS = AdapterOptions(("127.0.0.1:1",))
MIB = 2**20


QUIET = Side([Unit(0.0, 0.1)], 1.0, 1.0, 1.0)
SLOW = Side([Unit(0.0, 0.2)], 1.5, 1.25, 1.0)
DEAD = Side([Unit(0.0)], 1.5, 1.25, 1.0)


@long
@pytest.mark.timeout(400)
def test_a_short_run_finds_figures_of_an_attack() -> None:
    command = [sys.executable, "-m", "benchmarks.neighbours", "--short", "--json", "deepest-json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=380)
    found = json.loads(done.stdout)
    (row,) = found["rows"]
    assert row["attack"] == "deepest-json"
    assert row["p99 quiet, ms"] > 0
    assert row["p99 attacked, ms"] > 0
    assert 0 < row["times"] < math.inf
    assert 0 <= row["goodput attacked"] <= 1
    assert "NOT WHAT WAS EXPECTED" not in row["replies to attackers"]
    assert "ENDED" not in row["replies to attackers"]
    assert {goal["at_most"] for goal in found["goals"]} == {True, False}
    assert found["short"]


async def test_neighbour_records_every_unit_and_losses_after_close() -> None:
    async with running_worker(ScriptedEngine(*TALK, slots=2, repeat=True), slots=2) as worker:
        async with running_adapter(worker.address) as stage:
            neighbour = Neighbour([base64.b64encode(bytes(64_000)).decode()])
            await neighbour.open(stage.address)
            talking = asyncio.create_task(neighbour.converse(asyncio.get_running_loop().time()))
            await until(lambda: sum(not math.isnan(unit.latency_s) for unit in neighbour.units) >= 2)
            await neighbour.close()
            count = len(neighbour.units)
            await until(lambda: len(neighbour.units) > count)
            talking.cancel()
            await asyncio.gather(talking, return_exceptions=True)

    first, *_, last = neighbour.units
    assert first.latency_s > 0
    assert math.isnan(last.latency_s)
    assert not last.is_good
    assert [unit.due - first.due for unit in neighbour.units] == pytest.approx(
        list(range(len(neighbour.units)))
    )


async def test_attack_client_tallies_events_errors_and_close_codes() -> None:
    async with running_worker(ScriptedEngine(*TALK, slots=2, repeat=True), slots=2) as worker:
        async with running_adapter(worker.address) as stage:
            tally: Counter[str] = Counter()
            client = AttackClient(stage.address.removeprefix("http://"), tally)
            async with client.session("audio") as visit:
                await visit.say({"type": "x"})
                await visit.until("error")
                await visit.say({"type": "session.close"})
                with pytest.raises(Disconnected):
                    await visit.until("what never comes")
            await client.request("GET /nowhere")
            with pytest.raises(Disconnected):
                async with client.visit("/nowhere"):
                    pass

    assert tally["session.created"] == tally["session.closed"] == tally["closed 1000"] == 1
    assert tally["unknown_event"] == 1
    assert tally["HTTP 404"] == 2


def test_goodput_and_percentiles_count_unanswered_units() -> None:
    quiet = Side([Unit(0.0, 0.1)] * 100)
    attacked = Side([Unit(0.0, 0.3)] * 98 + [Unit(0.0, 2.0), Unit(0.0)])
    dropped = Side([Unit(0.0, 0.1, dropped=True)])
    outcome = Outcome(ATTACKS["pings"], quiet, attacked, Counter({"closed 1008": 1}), ())

    assert quiet.p99_ms == pytest.approx(100)
    assert (quiet.goodput, attacked.goodput, dropped.goodput) == (1, 0.98, 0)
    assert outcome.times > 3
    assert outcome.took_place
    assert not figures.is_met(outcome)
    assert figures.is_met(replace(outcome, attacked=quiet))
    assert not figures.is_met(replace(outcome, attacked=quiet, ended=("worker",)))
    assert "THE WORKER ENDED" in figures.summary(replace(outcome, ended=("worker",)))
    assert "NOT WHAT WAS EXPECTED" in figures.summary(replace(outcome, tally=Counter()))


def test_service_without_answers_misses_both_goals() -> None:
    found = figures.report([Outcome(ATTACKS["pings"], QUIET, DEAD, Counter(), ())], "command")
    assert [goal.is_met for goal in found.goals] == [False, False]


def test_the_page_has_a_section_of_neighbours_once_they_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document, "DOCUMENT", tmp_path / "performance.md")
    monkeypatch.setattr(document, "NEIGHBOURS", tmp_path / "neighbours.json")
    for other in ("KERNELS", "VLLM", "CROWD", "DISPATCH"):
        monkeypatch.setattr(document, other, tmp_path / "none")
    document.write()
    without = (tmp_path / "performance.md").read_text()
    outcomes = [
        Outcome(ATTACKS["nobody"], QUIET, DEAD, Counter(nothing=1), ()),
        Outcome(ATTACKS["pings"], QUIET, SLOW, Counter({"closed 1008": 3}), ()),
    ]
    figures.report(outcomes, "command").write(is_short=False, folder=tmp_path)
    document.write()

    text = (tmp_path / "performance.md").read_text()
    assert text.startswith(without)
    assert "| pings | 100 | 200 | 2 | 1 | 1 | 1 | 1.50 (+0.50) | 1.25 (+0.25) | closed 1008 x 3 |" in text
    assert "worst p99 under attack over quiet (pings): **2** (goal: at most 1.5, missed)" in text
    assert "worst share of goodput kept (pings): **1** (goal: at least 0.98, met)" in text


def test_attacks_are_within_the_limits_that_they_reach() -> None:
    chat = OPTIONS.max_chat_message_mib * MIB
    makers = [frames.garbage, frames.depth, frames.commas, frames.values, pictures.filled, pictures.largest]
    for make in (*makers, voices.empty_chunks, voices.longest, recordings.album):
        assert len(make()) <= OPTIONS.max_message_mib * MIB
    assert 0.9 * chat < len(chats.largest_text()) <= chat
    assert 0.7 * chat < len(chats.largest_clips()) <= chat
    for picture in json.loads(pictures.largest())["input"]["video_frames"]:
        assert read_frame(picture, "picture")
    assert read_wav(_voice(voices.longest()), "voice").seconds == LONGEST_S
    assert _voice(voices.empty_chunks()).count(b"junk") == voices.CHUNKS


def _voice(event: str) -> bytes:
    payload: Any = json.loads(event)["payload"]
    return base64.b64decode(payload["voice"]["ref_audio_base64"])


def test_an_attack_measured_again_takes_the_place_of_its_row(tmp_path: Path) -> None:
    def renewed(outcome: Outcome) -> Any:
        figures.renew([replace(outcome, attacked=QUIET)], "another", tmp_path)
        return json.loads((tmp_path / "neighbours.json").read_text())

    first = [Outcome(ATTACKS[name], QUIET, SLOW, Counter(), ()) for name in ("nobody", "pings", "events")]
    figures.report(first, "command").write(is_short=False, folder=tmp_path)
    found = renewed(first[1])
    assert [line["times"] for line in found["rows"]] == [2.0, 1.0, 2.0]
    assert [goal["met"] for goal in found["goals"]] == [False, True]
    assert "(events)" in found["goals"][0]["name"]
    found = renewed(first[2])
    assert [goal["met"] for goal in found["goals"]] == [True, True]
    assert found["title"].endswith("; again: `another`; again: `another`")
