"""The web page in a real browser, against the shipped model: conversations."""

import re
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import soxr
from numpy.typing import NDArray
from playwright.sync_api import Browser, expect

import antiphon
from tests.cli.support.processes import serving
from tests.page.browser import PHONE, RECORDINGS, Watched, watched
from tests.page.conftest import needs_chromium

pytestmark = needs_chromium

PIECE = antiphon.OUTPUT_RATE_HZ // 4


def likeness(heard: NDArray[np.float32], said: NDArray[np.float32]) -> float:
    """How much of `said` is in `heard` where it fits best, 0 to 1."""
    size = len(heard) + len(said)
    found = np.fft.irfft(np.fft.rfft(heard, size) * np.conj(np.fft.rfft(said, size)), size)
    at = int(np.argmax(found[: len(heard)]))
    part = heard[at : at + len(said)]
    return float(np.dot(part, said[: len(part)]) / (np.linalg.norm(part) * np.linalg.norm(said) + 1e-9))


def pieces(units: Iterable[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
    """Quarters of a second in which something is said."""
    quarters = np.concatenate(list(units))
    quarters = quarters[: len(quarters) // PIECE * PIECE].reshape(-1, PIECE)
    return [piece for piece in quarters if np.abs(piece).max() > 0.05]


def test_spoken_question_into_the_microphone_is_answered_on_screen_and_aloud(page: Watched) -> None:
    page.page.locator("#start").click()

    page.expect_said("my name is antiphon")
    page.expect_shown_as_sent()
    page.expect_state("speaking")
    page.expect_state("listening")
    assert page.live_devices() == 1
    heard, rate = page.played()
    heard = soxr.resample(heard, rate, antiphon.OUTPUT_RATE_HZ)
    assert len(page.answered()) >= 2
    said = np.concatenate(page.answered())
    # A browser that has no time loses much of it; `test_sound` compares sample by sample.
    assert 0.1 < np.count_nonzero(np.abs(heard) > 0.01) / np.count_nonzero(np.abs(said) > 0.01) < 1.5
    assert max(likeness(heard, piece) for piece in pieces(page.answered())) > 0.5
    expect(page.page.locator("#timeline .you .note")).to_contain_text("spoke for")
    for figure in ("context", "time", "latency", "unit", "round-trip"):
        assert page.page.locator(f"#fig-{figure}").inner_text() != "–", figure
    units = [event["input"]["audio"] for event in page.sent if event["type"] == "input.append"]
    assert {len(unit) for unit in units} == {4 * -(-64_000 // 3)}, "units are of exactly 16,000 samples"

    page.page.locator("#mute").click()
    expect(page.page.locator("#state-detail")).to_have_text("Your microphone is muted: it hears silence.")
    expect(page.page.locator("#mute")).to_have_attribute("aria-pressed", "true")

    page.page.locator("#stop").click()
    page.expect_state("closed")
    assert page.live_devices() == 0
    assert page.types_sent()[-1] == "session.close"


def test_likeness_distinguishes_different_answers() -> None:
    noise = np.random.default_rng(7).normal(size=(2, 24_000)).astype(np.float32)
    assert likeness(np.pad(noise[0], 999), noise[0]) > 0.99
    assert likeness(noise[1], noise[0]) < 0.2


@pytest.mark.long
def test_one_click_on_an_example_is_enough_and_a_pause_sends_nothing(page: Watched) -> None:
    page.ask("name")
    page.expect_said("my name is antiphon")
    expect(page.page.locator("#timeline .you .said")).to_have_text("recording: “hey who are you”")
    assert page.live_devices() == 0

    page.page.locator("#pause").click()
    page.expect_state("paused")
    count = len(page.sent)
    page.page.wait_for_timeout(1200)
    assert len(page.sent) == count

    page.page.locator("#pause").click()
    page.expect_state("listening")
    page.ask("how_are_you")
    page.expect_said("i am fine thank you")
    page.expect_shown_as_sent()
    assert page.types_sent().count("session.init") == 1


def test_force_listen_button_interrupts_answer_and_shows_it(page: Watched) -> None:
    page.ask("joke")
    page.expect_state("speaking")
    page.page.locator("#force-listen").click()
    page.expect_state("listening")
    expect(page.page.locator("#timeline .cut")).to_have_text("— interrupted")
    assert not page.page.locator("#timeline .model .said").last.inner_text().endswith("it")
    before, rate = page.played()
    page.wait_played(len(before) + rate // 3)
    heard, _ = page.played()
    assert np.abs(heard[-rate // 5 :]).max() < 0.01


@pytest.mark.long
def test_answer_that_the_model_breaks_off_is_dropped_where_it_is(browser: Browser, tmp_path: Path) -> None:
    """Talked over, a model listens in the middle of its turn: five seconds were said, not all were heard."""
    with serving(tmp_path, "yields") as serve:
        with watched(browser, serve.address("Web page")) as page:
            page.ask("name")
            page.expect_state("speaking")

            page.expect_state("listening")
            expect(page.page.locator("#timeline .cut")).to_have_text("— interrupted")
            assert sum(map(len, page.answered())) == 5 * antiphon.OUTPUT_RATE_HZ
            assert "session.close" not in page.types_sent()
            assert "force_listen" not in str(page.sent)
            heard, rate = page.played()
            assert 0 < np.count_nonzero(np.abs(heard) > 0.01) < 4.5 * rate
            page.wait_played(len(heard) + rate // 2)
            rest = page.played()[0][len(heard) + rate // 10 :]
            assert np.abs(rest).max() < 0.001


def test_microphone_that_is_chosen_is_the_one_that_is_opened(page: Watched) -> None:
    expect(page.page.locator("#set-microphone option")).to_have_count(4)
    page.page.locator("#settings summary").click()
    for name in ("Fake Audio Input 2", "Fake Audio Input 1"):
        page.page.locator("#set-microphone").select_option(label=name)
        page.page.locator("#start").click()
        page.expect_state("listening")
        assert page.page.evaluate("window.tap.named()") == [name]
        page.page.locator("#stop").click()
        page.expect_state("closed")


OPENERS = {"realtime": "session.init", "earlier": "session.update", "duplex": "prepare"}


def test_every_dialect_holds_the_same_conversation(browser: Browser, adapter: str) -> None:
    with ExitStack() as stack:
        pages = {dialect: stack.enter_context(watched(browser, adapter)) for dialect in OPENERS}
        for dialect, page in pages.items():
            page.page.locator("#developer summary").click()
            page.page.locator("#dialect").select_option(dialect)
            page.ask("name")
        for dialect, page in pages.items():
            page.expect_said("my name is antiphon")
            page.expect_state("listening")
            assert page.types_sent()[0] == OPENERS[dialect]
            told = page.page.locator("#trace").inner_text()
            assert (
                told in str(page.sent[0]) if dialect != "duplex" else re.search("[0-9a-f]{32}", told) is None
            )
            page.page.locator("#events-filter").fill(f'"type":"{OPENERS[dialect]}"')
            expect(page.page.locator("#events li")).to_have_count(1)


@pytest.mark.long
def test_camera_object_is_named_by_model_and_shown(page: Watched) -> None:
    page.page.locator("#settings summary").click()
    page.page.locator("#set-prompt").fill("You are a helpful assistant.")
    page.page.locator("#set-temperature").fill("0")
    page.page.locator("#set-voice").set_input_files(RECORDINGS / "joke.wav")
    expect(page.page.locator("#voice-clear")).to_be_visible()
    page.page.locator("#with-camera").check()

    page.page.locator("#recording").set_input_files(RECORDINGS / "vision.wav")

    expect(page.page.locator("#timeline .model .said").last).to_contain_text("red circle")
    expect(page.page.locator("#preview")).to_be_visible()
    expect(page.page.locator("#timeline .you img").first).to_be_visible()
    assert page.page.locator("#timeline .you .said").inner_text() == "recording: vision.wav"
    # Settings went along, and what the model cannot do is told.
    payload = page.sent[0]["payload"]
    assert payload["system_prompt"] == "You are a helpful assistant."
    assert payload["config"] == {"temperature": 0}
    assert payload["voice"]["ref_audio_base64"].startswith("UklGR")
    expect(page.page.locator("#timeline .system").last).to_contain_text("Not honoured by this model: voice")

    page.page.locator("#stop").click()
    page.expect_state("closed")
    assert page.live_devices() == 0


@pytest.mark.long
def test_conversation_on_a_phone_in_chinese(browser: Browser, adapter: str) -> None:
    with watched(browser, adapter, viewport=PHONE, locale="zh-CN", has_touch=True) as page:
        expect(page.page.locator("#start")).to_have_text("开始说话")
        page.ask("name")
        page.expect_said("my name is antiphon")
        assert page.page.locator("#state").inner_text() in ("正在听", "正在说")
        for tab in ("conversation", "chat", "transcription"):
            page.show(tab)
            assert page.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], tab
