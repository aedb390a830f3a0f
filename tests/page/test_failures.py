"""Tests of failures on the page: each has a text and a next step, and no device stays open."""

import json
import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import trustme
from playwright.sync_api import Browser, expect
from websockets.sync.client import ClientConnection, connect

from tests.e2e.conftest import running_adapter
from tests.failures.link_thread import link_in_thread
from tests.page.browser import Watched, watched
from tests.page.conftest import SLOTS, needs_chromium
from tests.support.patience import PATIENCE_S
from tests.ws_adapter.support.keyfile import KeyFile

pytestmark = needs_chromium

REFUSED = "Failed to load resource"
NO_SOCKET = "WebSocket connection to"


@pytest.mark.parametrize(
    ("error", "failure", "text"),
    [
        ("NotAllowedError", "denied", "was not allowed"),
        ("NotFoundError", "no_device", "no such microphone"),
        ("NotReadableError", "busy_device", "Another program"),
    ],
)
@pytest.mark.sample("NotAllowedError-*")
def test_microphone_that_cannot_be_had(page: Watched, error: str, failure: str, text: str) -> None:
    page.page.evaluate(
        "name => { navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException('', name)) }",
        error,
    )
    page.page.locator("#start").click()
    page.expect_failure(failure, text)
    page.expect_state("closed")
    expect(page.page.locator("#start")).to_be_visible()
    assert page.sent == []
    page.page.locator("#failure .quiet").click()
    expect(page.page.locator("#failure")).to_be_hidden()


def test_page_that_is_no_secure_context_says_where_to_go(
    browser: Browser, worker: str, tmp_path: Path
) -> None:
    made = trustme.CA().issue_cert("localhost")
    made.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    made.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    files = ("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))
    with running_adapter(worker, *files, "--tls-port", "0") as adapter:
        port = adapter.address.rpartition(":")[2]
        with urlopen(f"{adapter.address}/page/about.json", timeout=PATIENCE_S) as about:
            tls_port = json.load(about)["tls_port"]
        with watched(browser, f"http://gateway:{port}") as page:
            page.page.locator("#start").click()
            page.expect_failure("insecure", "only to pages on https or on localhost")
            assert page.page.locator("#failure a").get_attribute("href") == f"https://gateway:{tls_port}/"
            page.show("chat")
            page.page.locator("#chat-text").fill("what is your name")
            page.page.locator("#chat-send").click()
            expect(page.page.locator("#chat .model")).to_contain_text("antiphon")


def test_lost_connection_leaves_no_microphone_open(browser: Browser, worker: str) -> None:
    with running_adapter(worker) as adapter:
        with watched(browser, adapter.address, NO_SOCKET, REFUSED) as page:
            page.page.locator("#start").click()
            page.expect_state("listening")
            assert page.live_devices() == 1

            os.kill(adapter.process.pid, signal.SIGKILL)

            page.expect_failure("lost", "Your microphone is off")
            page.expect_state("closed")
            assert page.live_devices() == 0
            page.page.locator("#failure .primary").click()
            page.expect_failure("unreachable", "cannot be reached")
            assert page.live_devices() == 0


def test_lost_connection_is_opened_again_and_the_conversation_goes_on(browser: Browser, worker: str) -> None:
    with running_adapter(worker, "--resume-window-s", "60") as adapter:
        target = adapter.address.removeprefix("http://")
        with link_in_thread(target) as link, watched(browser, f"http://{link.address}", NO_SOCKET) as page:
            page.page.locator("#start").click()
            page.expect_state("listening")
            link.use(None)
            link.cut()
            page.expect_state("reconnecting")
            assert page.live_devices() == 1
            link.use(target)
            page.expect_state("listening", "speaking")
            page.ask("name")
            page.expect_said("my name is antiphon")
            assert [event["type"] for event in page.received].count("session.created") == 1
            assert "session.resumed" in [event["type"] for event in page.received]


def holders(stack: ExitStack, address: str, count: int) -> list[ClientConnection]:
    """Clients who take `count` places, slots first.

    A slot may still be cleaned behind somebody who left: who is to have one waits until it has it.
    """
    url = f"{address.replace('http', 'ws')}/v1/realtime?mode=audio"
    sockets = []
    for number in range(count):
        held = stack.enter_context(connect(url))
        told = held.recv(timeout=PATIENCE_S)
        while number < SLOTS and json.loads(told)["type"] != "session.queue_done":
            told = held.recv(timeout=PATIENCE_S)
        held.send('{"type": "session.init", "payload": {}}')  # a place without settings is given up soon
        sockets.append(held)
    return sockets


def test_queue_with_place_and_countdown_then_the_server_is_full(browser: Browser, worker: str) -> None:
    with running_adapter(worker, "--queue-capacity", "1", "--queue-update-s", "0.2") as adapter:
        with ExitStack() as stack, watched(browser, adapter.address) as page:
            first, *_ = holders(stack, adapter.address, SLOTS)
            page.ask("name")
            page.expect_state("queued")
            expect(page.page.locator("#state-detail")).to_contain_text("Place 1 of 1. About 0:")

            with watched(browser, adapter.address) as late:
                late.page.locator("#start").click()
                late.expect_failure("full", "so is its queue")
                assert late.live_devices() == 0

            first.close()
            page.expect_said("my name is antiphon")


def test_key_is_asked_for_refused_and_kept_in_memory_only(
    browser: Browser, worker: str, tmp_path: Path
) -> None:
    keys = KeyFile(tmp_path / "keys", "alice")
    secret = keys.secrets["alice"]
    with running_adapter(worker, "--auth", "keys", "--keys", str(keys.path)) as adapter:
        with watched(browser, adapter.address, REFUSED, NO_SOCKET) as page:
            expect(page.page.locator("#key-form")).to_be_visible()
            page.page.locator("#start").click()
            page.expect_failure("key", "rejected")

            page.page.locator("#key").fill("wrong")
            page.page.locator("#key-form button").click()
            page.expect_failure("key", "rejected")

            page.page.locator("#key").fill(secret)
            page.page.locator("#key-form button").click()
            expect(page.page.locator("#key-form")).to_be_hidden()
            page.ask("name")
            page.expect_said("my name is antiphon")
            kept: list[Any] = page.page.evaluate(
                "[document.cookie, location.href, ...[localStorage, sessionStorage].map(JSON.stringify)]"
            )
            assert not any(secret in place for place in kept)
            assert page.page.locator("#key").input_value() == ""


@pytest.mark.long
def test_expired_conversation_shows_timeout(browser: Browser, worker: str) -> None:
    with running_adapter(worker, "--session-limit-audio-s", "5") as adapter:
        with watched(browser, adapter.address) as page:
            page.page.locator("#start").click()
            page.expect_failure("timeout", "time of this conversation is over")
            assert page.live_devices() == 0


def test_non_audio_file_shows_failure(page: Watched) -> None:
    page.page.locator("#recording").set_input_files(Path(__file__))
    page.expect_failure("file", "cannot be read")
    page.expect_state("idle")


@pytest.mark.long
def test_text_only_answer_shows_no_voice_failure(page: Watched) -> None:
    """A server that sends text alone."""
    page.page.evaluate(
        """() => {
          const Real = WebSocket;
          window.WebSocket = class extends Real {
            set onmessage(on) {
              super.onmessage = (event) => JSON.parse(event.data).kind === "audio" || on(event);
            }
          };
        }"""
    )
    page.ask("name")

    page.expect_failure("no_voice", "answers in writing")
    page.expect_said("my name is antiphon")
