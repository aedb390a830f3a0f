"""Tests of `antiphon serve` as a process: its banner, its exit, and no leftovers after any exit."""

import asyncio
import json
import os
import pty
import signal
import urllib.request
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

import antiphon
from antiphon.grpc import get_info
from antiphon_command.commands.serve import print_banner
from inference_service.interface.setups import Mode
from tests.cli.support.processes import serving, wait_until
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import INFO, ScriptedEngine, running_worker
from tests.ws_adapter.support.calls import Authority
from tests.ws_adapter.support.keyfile import KeyFile

SECOND = np.zeros(16_000, np.float32)


async def one_turn(url: str) -> str:
    """Sends silence until the model has said something; returns what."""
    said = ""
    async with antiphon.connect(url) as client, client.duplex() as session:
        async for event in session:
            match event:
                case antiphon.Created() | antiphon.Listening():
                    await session.send_audio(SECOND)
                case antiphon.TextDelta():
                    said += event.text
                    await session.send_audio(SECOND)
                case antiphon.TurnEnd():
                    break
    return said


async def one_answer(url: str) -> str:
    async with antiphon.connect(url) as client, client.chat("Is it true?") as turn:
        return (await turn.answer()).text


async def one_utterance(url: str) -> str:
    async with antiphon.connect(url) as client, client.transcribe() as session:
        await session.send_audio(SECOND)
        await session.end_utterance()
        async for event in session:
            if isinstance(event, antiphon.Transcript):
                break
    return event.text


def test_every_address_of_the_banner_answers(tmp_path: Path) -> None:
    with serving(tmp_path) as serve:
        with urllib.request.urlopen(serve.address("Health"), timeout=PATIENCE_S) as answer:
            assert answer.status == 200
        info = asyncio.run(get_info(serve.address("gRPC")))
        said = asyncio.run(one_turn(serve.address("WebSocket")))
        assert serve.address("Chat").endswith("/ws/chat")
        assert serve.address("Transcribe").endswith("/v1/transcription")

    title = f"Antiphon {antiphon.__version__} | scripted | 2 slots | no key: loopback only"
    assert serve.banner.splitlines()[0].strip() == title
    assert info.model == "scripted"
    assert said == "Hello there how are you?"


@pytest.mark.long
def test_web_page_is_first_in_the_banner_and_opened_in_the_users_browser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seen"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {seen}.part && mv {seen}.part {seen}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(browser))
    with serving(tmp_path, "reply", "--open") as serve:
        assert serve.banner.splitlines()[2].split() == ["Web", "page", serve.address("Web page")]
        with urllib.request.urlopen(serve.address("Web page"), timeout=PATIENCE_S) as answer:
            assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
            assert b"<html" in answer.read()
        wait_until(seen.exists, "the browser was started")
        assert seen.read_text().strip() == serve.address("Web page")
        assert asyncio.run(one_answer(serve.address("Chat"))) == "Yes."
        assert asyncio.run(one_utterance(serve.address("Transcribe"))).startswith("Yes.")


@pytest.mark.long
def test_banner_with_no_page_has_no_page_address(tmp_path: Path) -> None:
    with serving(tmp_path, "talk", "--no-page", "--open") as serve:
        assert "Web page" not in serve.banner
        assert serve.banner.splitlines()[2].split()[0] == "WebSocket"


async def test_banner_offers_only_what_the_model_can_do(capsys: pytest.CaptureFixture[str]) -> None:
    writes = replace(INFO, modes=frozenset({Mode.CHAT, Mode.TOKENS}))
    async with running_worker(ScriptedEngine(info=writes)) as worker:
        await print_banner(["http://127.0.0.1:8006"], [worker.address], "no key: loopback only")

    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]]
    assert names == ["Chat", "gRPC", "Health", "Ctrl-C"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.sample("15")
def test_signal_stops_all_processes_and_leaves_no_file(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path) as serve:
        assert set(serve.children()) == {"worker", "adapter"}
        serve.stop(number)


def test_drain_lets_a_running_conversation_finish(tmp_path: Path) -> None:
    async def stop_in_the_middle() -> antiphon.Event:
        async with antiphon.connect(serve.address("WebSocket")) as client, client.duplex() as session:
            await anext(session)
            serve.signal(signal.SIGTERM)
            await asyncio.to_thread(wait_until, lambda: "Draining" in serve.errors, "it says so")
            await session.send_audio(SECOND)
            return await anext(session)

    with serving(tmp_path) as serve:
        assert isinstance(asyncio.run(stop_in_the_middle()), antiphon.Listening)
        assert serve.wait() == 0
        serve.assert_nothing_left()


def test_second_signal_ends_at_once(tmp_path: Path) -> None:
    async def hold_open() -> int:
        async with antiphon.connect(serve.address("WebSocket")) as client, client.duplex():
            serve.signal(signal.SIGINT)
            await asyncio.to_thread(wait_until, lambda: "Draining" in serve.errors, "it says so")
            serve.signal(signal.SIGINT)
            return await asyncio.to_thread(serve.wait, 5)

    with serving(tmp_path) as serve:
        assert asyncio.run(hold_open()) == 1
        serve.assert_nothing_left()


def test_killed_worker_or_adapter_restarts_at_its_address(tmp_path: Path) -> None:
    with serving(tmp_path) as serve:
        for name in ("worker", "adapter"):
            os.kill(serve.children()[name], signal.SIGKILL)
            wait_until(lambda name=name: f"The {name} is ready again." in serve.errors, "it is back")  # type: ignore[misc]

        assert asyncio.run(one_turn(serve.address("WebSocket"))) == "Hello there how are you?"
        serve.signal(signal.SIGINT)
        assert serve.wait() == 0
        told = [line.partition(" in ")[0].strip() for line in serve.errors.splitlines() if "again in" in line]
        serve.assert_nothing_left()

    how = "stopped unexpectedly (killed by SIGKILL); it is started again"
    assert told == [f"The worker {how}", f"The adapter {how}"]


@pytest.mark.long
def test_child_with_failed_start_is_reported_and_restarted_until_ready(tmp_path: Path) -> None:
    with serving(tmp_path) as serve:
        fault = tmp_path / "fault"
        fault.touch()
        os.kill(serve.children()["worker"], signal.SIGKILL)
        refused = "The worker did not start (exit code 1); it is started again"
        wait_until(lambda: serve.errors.count(refused) >= 3, "it says so each time")
        assert serve.process.poll() is None
        fault.unlink()

        wait_until(lambda: "The worker is ready again." in serve.errors, "it is back")
        assert serve.errors.count("no room for the model") >= 3
        serve.stop()


@pytest.mark.long
def test_child_with_invalid_settings_at_a_restart_ends_serve(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys", "alice")
    with serving(tmp_path, "talk", "--auth", "keys", "--keys", keys.path) as serve:
        keys.path.write_text("nonsense")
        os.kill(serve.children()["adapter"], signal.SIGKILL)

        assert serve.wait() == 2
        keys.path.unlink()
        assert "Line 1 of" in serve.errors.splitlines()[-1]
        serve.assert_nothing_left()


@pytest.mark.long
def test_signal_during_a_restart_stops_all_processes(tmp_path: Path) -> None:
    with serving(tmp_path) as serve:
        os.kill(serve.children()["worker"], signal.SIGKILL)
        wait_until(lambda: "started again" in serve.errors, "it says so")
        serve.signal(signal.SIGTERM)

        serve.wait()
        serve.assert_nothing_left()


async def refusal(url: str, key: str) -> str | None:
    """Why a conversation with this key does not come about, None if it does."""
    try:
        async with antiphon.connect(url, key) as client, client.duplex():
            return None
    except antiphon.AuthError as error:
        return error.reason


def test_keys_added_or_withdrawn_take_effect_by_sighup(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys", "alice")
    with serving(tmp_path, "talk", "--auth", "keys", "--keys", keys.path) as serve:
        url = serve.address("WebSocket")
        assert asyncio.run(refusal(url, keys.secrets["alice"])) is None
        keys.add("bob")
        keys.remove("alice")
        assert asyncio.run(refusal(url, keys.secrets["bob"])) == "unauthorized"
        serve.signal(signal.SIGHUP)

        wait_until(lambda: asyncio.run(refusal(url, keys.secrets["bob"])) is None, "the new key opens")
        assert asyncio.run(refusal(url, keys.secrets["alice"])) == "unauthorized"
        assert "Keys and certificate are read again." in serve.errors
        assert serve.process.poll() is None
        keys.path.unlink()


@pytest.mark.long
def test_closed_terminal_stops_serve_also_with_keys(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys", "alice")
    ours, terminal = pty.openpty()
    options = ("--auth", "keys", "--keys", keys.path)
    with serving(tmp_path, "talk", *options, terminal=os.ttyname(terminal)) as serve:
        serve.signal(signal.SIGHUP)
        wait_until(lambda: "Keys and certificate are read again." in serve.errors, "it reads them")
        os.close(terminal)
        os.close(ours)

        assert serve.wait() == 0
        keys.path.unlink()
        serve.assert_nothing_left()


@pytest.mark.long
def test_sighup_without_reloadable_files_stops_serve(tmp_path: Path) -> None:
    with serving(tmp_path) as serve:
        serve.stop(signal.SIGHUP)


def test_serve_passes_public_options_to_its_adapter(tmp_path: Path) -> None:
    voices, recordings = tmp_path / "voices", tmp_path / "recordings"
    voices.mkdir()
    antiphon.write_wav(voices / "default.wav", np.full(32_000, 0.1, np.float32), 16_000)
    options = (
        *("--default-realtime-mode", "audio", "--voices", voices, "--recordings", recordings),
        *("--allowed-origins", "https://example.org,https://example.com", "--trusted-proxies", "127.0.0.0/8"),
    )

    async def mode_of_default(url: str, origin: str) -> str:
        headers = {"Origin": origin, "X-Forwarded-For": "203.0.113.9"}
        async with connect(url, additional_headers=headers) as socket:
            while json.loads(await socket.recv())["type"] != "session.queue_done":
                pass
            await socket.send(json.dumps({"type": "session.init", "payload": {}}))
            created = json.loads(await socket.recv())
            return str(created["type"])

    with serving(tmp_path, "talk", *options) as serve:
        url = serve.address("WebSocket").partition("?")[0]
        assert asyncio.run(mode_of_default(url, "https://example.com")) == "session.created"
        with pytest.raises(InvalidStatus) as refused:
            asyncio.run(mode_of_default(url, "https://example.net"))
        assert refused.value.response.status_code == 403
        voice_url = serve.address("Health").replace("/readyz", "/api/default_ref_audio")
        with urllib.request.urlopen(voice_url, timeout=PATIENCE_S) as answer:
            assert json.load(answer)["duration"] == 2.0
        serve.signal(signal.SIGTERM)
        assert serve.wait() == 0

    [meta] = recordings.rglob("meta.json")
    told = json.loads(meta.read_text())
    assert told["mode"] == "audio"
    assert "203.0.113.9" in json.dumps(told["client"])


@pytest.mark.long
def test_banner_of_a_server_with_tls_shows_wss_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = Authority(tmp_path).issue()
    with serving(tmp_path, "talk", "--tls-cert", cert, "--tls-key", key, "--tls-port", "0") as serve:
        assert serve.address("Chat").startswith("wss://")
        assert serve.address("Transcribe").startswith("wss://")
        assert serve.address("Health").startswith("http://")
        assert "adapter ready" not in serve.errors
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        os.kill(serve.children()["adapter"], signal.SIGKILL)
        wait_until(lambda: "The adapter is ready again." in serve.errors, "it is back")
        assert asyncio.run(one_turn(serve.address("WebSocket"))) == "Hello there how are you?"


def test_signal_during_startup_stops_serve(tmp_path: Path) -> None:
    with serving(tmp_path, wait=False) as serve:
        wait_until(lambda: "worker" in serve.children(), "the worker has been started")
        serve.signal(signal.SIGTERM)

        assert serve.wait() == 0
        assert serve.banner == ""
        serve.assert_nothing_left()


def test_killed_serve_leaves_no_process_or_file(tmp_path: Path) -> None:
    with serving(tmp_path) as serve:
        assert set(serve.children()) == {"worker", "adapter"}
        serve.stop(signal.SIGKILL, -signal.SIGKILL)
