"""OpenAI's SDKs for JavaScript and for agents, unmodified, against the checkpoint of the package.

Each runs as a process, from `tests/sdks`, and prints what came as JSON.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
from openai import OpenAI

from tests.conformance.realtime_ga.test_openai_sdk import MODEL, question
from tests.conformance.support.stack import Stack, running_stack
from tests.support.patience import PATIENCE_S
from tests.ws_adapter.support.keyfile import KeyFile

ROOT = Path(__file__).parents[3]
SDKS = ROOT / "tests/sdks"
AGENTS = ROOT / ".venv-agents"

needs_node = pytest.mark.skipif(
    shutil.which("node") is None or not (SDKS / "node_modules/.installed").exists(),
    reason="OpenAI's SDKs for JavaScript are not installed here: make sdks, with Node 20 or newer",
)
needs_agents = pytest.mark.skipif(
    not (AGENTS / ".installed").exists(), reason="openai-agents is not installed here: make sdks"
)


@dataclass(frozen=True)
class Secure:
    """An adapter with keys, of which `key` is one, that speaks TLS at `address` too, by a certificate that
    `authority` has signed."""

    stack: Stack
    address: str
    authority: Path
    key: str


@pytest.fixture(scope="module")
def secure(shipped: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    """The SDK for JavaScript connects with TLS, whatever address it is given."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(folder / "authority.pem")
    issued.private_key_and_cert_chain_pem.write_to_path(folder / "cert.pem")
    issued.private_key_pem.write_to_path(folder / "key.pem")
    keys = KeyFile(folder / "keys", "alice")
    files = ("--tls-cert", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem"))
    options = (*files, "--tls-port", "0", "--auth", "keys", "--keys", str(keys.path))
    with running_stack(shipped.worker, options=options) as stack:
        address = next(line for line in stack.log.text.splitlines() if "ready on https://" in line)
        key = keys.secrets["alice"]
        yield Secure(stack, address.partition("ready on ")[2], folder / "authority.pem", key)
        assert key not in stack.log.text


def run(*command: str, timeout_s: float = PATIENCE_S, **variables: str) -> Any:
    """Return what a program printed last."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        cwd=SDKS,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def voice_agents(stack: Stack, *more: str, python: bool = False) -> Any:
    """Run OpenAI's agents; return their account of the conversation."""
    program = (str(AGENTS / "bin/python"), "voice_agents.py") if python else ("node", "voice_agents.js")
    return run(*program, stack.url(f"/v1/realtime?model={MODEL}"), "none", MODEL, *more)


@pytest.fixture
def spoken(tmp_path: Path) -> str:
    """A file with a spoken question."""
    path = tmp_path / "question.pcm"
    path.write_bytes(question("name"))
    return str(path)


@needs_node
@pytest.mark.parametrize("flavour", ["websocket", "ws"])
def test_sdk_for_javascript(secure: Secure, flavour: str, spoken: str) -> None:
    """`websocket` comes in as a browser does, with its key among the subprotocols."""
    given = (flavour, f"{secure.address}/v1", secure.key, MODEL, spoken)

    told = run(
        *("node", "--experimental-websocket", "openai.js", *given), NODE_EXTRA_CA_CERTS=str(secure.authority)
    )

    assert told["errors"] == []
    assert told["answers"] == ["completed", "completed"]
    assert told["events"][0] == "session.created"
    assert "antiphon" in told["text"]
    assert told["transcript"]
    assert told["audioBytes"] > 24_000
    assert told["protocol"] == ("realtime" if flavour == "websocket" else "")


@needs_node
@pytest.mark.parametrize("conditions", [[], ["--conditions=browser", "--experimental-websocket"]])
@pytest.mark.sample("conditions0")
def test_agents_for_javascript_understand_every_event(secure: Secure, conditions: list[str]) -> None:
    """Trap 3: an event that does not fit its schemas this SDK drops without a word.

    As in a browser it has no key, but a client secret that its server has asked for.
    """
    url = secure.stack.url(f"/v1/realtime?model={MODEL}")
    key = secure.key
    if conditions:
        server = OpenAI(api_key=key, base_url=f"{secure.stack.address}/v1")
        key = server.realtime.client_secrets.create().value

    told = run("node", *conditions, "voice_agents.js", url, key, MODEL)

    assert key not in secure.stack.log.text
    assert told["unknown"] == []
    assert told["errors"] == []
    assert "antiphon" in told["answers"][0]
    assert told["answers"][1]
    assert told["audioBytes"] > 48_000
    assert [item["role"] for item in told["history"]] == ["user", "assistant"] * 2
    assert told["protocol"] == ("realtime" if conditions else "")
    # Trap 15: an item is told once.
    assert "conversation.item.created" not in told["events"]


@needs_node
def test_agents_for_javascript_as_they_come_out_of_the_box(shipped: Stack, spoken: str) -> None:
    """The SDK asks for semantic VAD and sends nothing in response to the user's speech."""
    told = voice_agents(shipped, spoken)

    assert told["turnDetection"] == "semantic_vad"
    assert told["unknown"] == []
    assert told["errors"] == []
    assert "antiphon" in told["answers"][0]
    assert told["audioBytes"] > 24_000
    assert {item["role"] for item in told["history"]} == {"user", "assistant"}


@needs_agents
@pytest.mark.long
def test_agents_for_python_as_they_come_out_of_the_box(shipped: Stack, spoken: str) -> None:
    told = voice_agents(shipped, spoken, python=True)

    assert told["turn_detection"] == "semantic_vad"
    assert told["errors"] == []
    assert told["events"][0] == "session.created"
    assert told["audio_bytes"] > 24_000
    assert {item["role"] for item in told["history"]} == {"user", "assistant"}
    assert "antiphon" in json.dumps(told["history"])


@needs_agents
@pytest.mark.parametrize("detection", ["server_vad", "semantic_vad"])
@pytest.mark.sample("semantic_vad")
def test_agents_for_python_find_no_event_invalid(shipped: Stack, detection: str) -> None:
    """Each event is held against the types of OpenAI's client, and one that does not fit is an error."""
    own = ("semantic_vad",) if detection == "semantic_vad" else ()

    told = voice_agents(shipped, *own, python=True)

    assert told["turn_detection"] == detection
    assert told["errors"] == []
    assert told["events"][0] == "session.created"
    assert told["audio_bytes"] > 48_000
    assert [item["role"] for item in told["history"]] == ["user", "assistant"] * 2
    assert "antiphon" in json.dumps(told["history"][1])


@needs_agents
def test_agent_in_python_with_a_tool_switches_the_light(shipped: Stack) -> None:
    told = voice_agents(shipped, "tool", python=True)

    assert told["errors"] == []
    assert told["called"] == ["on", "off"]
    calls = [item for item in told["history"] if item["type"] == "function_call"]
    assert [(call["name"], call["status"]) for call in calls] == [("set_light", "completed")] * 2
    words = json.dumps([item for item in told["history"] if item["type"] == "message"])
    assert "the light is on" in words
    assert "the light is off" in words
    assert told["audio_bytes"] > 48_000


@needs_node
def test_agent_in_javascript_with_a_tool_switches_the_light(shipped: Stack) -> None:
    told = voice_agents(shipped, "tool")

    assert told["unknown"] == []
    assert told["errors"] == []
    assert told["called"] == ["on", "off"]
    assert told["answers"] == ["the light is on", "the light is off"]
    assert told["audioBytes"] > 48_000
