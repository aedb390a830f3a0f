"""LiveKit's agents and Pipecat, unmodified, against the checkpoint of the package.

Each runs as a process, from `tests/sdks`, in an environment of its own, and prints what came as JSON.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.realtime_ga.test_foreign_sdks import ROOT, run
from tests.conformance.realtime_ga.test_openai_sdk import MODEL, question
from tests.conformance.support.stack import Stack

FRAMEWORKS = ROOT / ".venv-frameworks"
PYTHON = str(FRAMEWORKS / "bin/python")
SAID, NAME = "are you", "my name is antiphon"
JOKE = "why did the robot cross the road because a chicken programmed it"
LIGHTS = ["the light is on", "the light is off"]
LONGEST_S = 600.0

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not (FRAMEWORKS / ".installed").exists(),
        reason="LiveKit and Pipecat are not installed here: make frameworks",
    ),
]

TURNS = ["default", '{"type": "server_vad"}', '{"type": "semantic_vad"}']


@pytest.fixture
def spoken(tmp_path: Path) -> str:
    """A file with a spoken question."""
    path = tmp_path / "question.pcm"
    path.write_bytes(question("name"))
    return str(path)


@pytest.fixture
def request_for_light(tmp_path: Path) -> str:
    """A file in which somebody asks for the light."""
    path = tmp_path / "light.pcm"
    path.write_bytes(question("light"))
    return str(path)


def livekit(shipped: Stack, spoken: str, kind: str, turns: str = "default") -> Any:
    url = f"{shipped.address}/v1"
    return run(PYTHON, "livekit_agent.py", url, "none", MODEL, spoken, kind, turns)


def pipecat(shipped: Stack, spoken: str, kind: str, turns: str = "default", *more: str) -> Any:
    url = shipped.address.replace("http", "ws", 1)
    given = (url, "none", MODEL, spoken, kind, turns, *more)
    return run(PYTHON, "pipecat_agent.py", *given, timeout_s=LONGEST_S)


@pytest.mark.parametrize("turns", TURNS)
def test_livekit_realtime_answers_is_interrupted_and_keeps_its_history(
    shipped: Stack, spoken: str, turns: str
) -> None:
    told = livekit(shipped, spoken, "realtime", turns)

    assert told["errors"] == []
    assert told["answers"][0] == told["answers"][2] == told["answers"][4] == NAME
    assert told["interrupted"] == [False, True, False, True, False]
    assert [role for role, _ in told["history"]] == ["user", "assistant"] * 5
    assert SAID in told["history"][0][1]
    assert told["audio_bytes"] > 96_000


def test_livekit_agent_with_a_tool_switches_the_light(shipped: Stack, request_for_light: str) -> None:
    told = livekit(shipped, request_for_light, "tool")

    assert told["errors"] == []
    assert told["called"] == ["on", "off"]
    assert told["answers"] == LIGHTS
    assert [role for role, _ in told["history"]] == ["user", "assistant"] * 2
    assert told["audio_bytes"] > 48_000


def test_livekit_live_answers_a_spoken_question(shipped: Stack, spoken: str) -> None:
    told = livekit(shipped, spoken, "live")

    assert told["errors"] == []
    assert told["answers"][0].strip() == NAME
    assert told["audio_bytes"] > 48_000


@pytest.mark.parametrize("turns", TURNS)
def test_pipecat_realtime_answers_speech_and_typed_turns(shipped: Stack, spoken: str, turns: str) -> None:
    told = pipecat(shipped, spoken, "realtime", turns, "3")

    assert told["errors"] == []
    assert told["answers"] == [NAME] * 4
    if turns != "default":  # only then transcripts are asked for
        assert [SAID in words for role, words in told["history"] if role == "user"] == [True]
    assert told["audio_bytes"] > 4 * 48_000


def test_pipecat_pipeline_with_a_tool_switches_the_light(shipped: Stack, request_for_light: str) -> None:
    told = pipecat(shipped, request_for_light, "tool", "default", "1")

    assert told["errors"] == []
    assert told["called"] == ["on", "off"]
    assert told["answers"] == ["hello how can i help you", *LIGHTS]
    assert told["audio_bytes"] > 96_000


@pytest.mark.parametrize("turns", TURNS)
def test_pipecat_realtime_answers_a_question_that_is_spoken_over_a_joke(
    shipped: Stack, spoken: str, turns: str
) -> None:
    told = pipecat(shipped, spoken, "realtime", turns, "0", "0", "over")

    assert told["errors"] == []
    assert told["answers"][0] == told["answers"][-1] == NAME
    assert JOKE in told["answers"], "it is generated before the first word of it was heard"
    assert told["interruptions"] >= 2


@pytest.mark.timeout(900)
def test_pipecat_realtime_holds_300_typed_turns(shipped: Stack, spoken: str) -> None:
    told = pipecat(shipped, spoken, "realtime", "default", "300")

    assert told["errors"] == []
    assert told["answers"] == [NAME] * 301


@pytest.mark.parametrize("late_s", ["0", "40"])
def test_pipecat_live_answers_late_joining_user(shipped: Stack, spoken: str, late_s: str) -> None:
    told = pipecat(shipped, spoken, "live", "default", "0", late_s)

    assert told["errors"] == []
    assert [answer.strip() for answer in told["answers"]] == [NAME]
    assert told["audio_bytes"] > 48_000


def test_frameworks_are_those_that_the_docs_name() -> None:
    """The versions in docs/realtime.md and docs/live.md are those that ran."""
    pinned = (ROOT / "tests/sdks/frameworks.txt").read_text()
    names = {"livekit-agents": "LiveKit agents", "pipecat_ai": "Pipecat", "pipecat-ai": "Pipecat"}
    versions = {
        name: version
        for line in pinned.splitlines()
        for name, _, version in [line.partition("==")]
        if name in names
    }
    assert len(versions) == 2
    for page in ("realtime", "live"):
        text = (ROOT / f"docs/{page}.md").read_text()
        assert all(f"{names[name]} {version}" in text for name, version in versions.items()), json.dumps(
            versions
        )
