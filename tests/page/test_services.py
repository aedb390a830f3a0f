"""Chat and transcription on the page, and whether everybody can use all of it."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from antiphon.audio.wav import read_wav
from tests.page.browser import PHONE, RECORDINGS, Watched, make_client_modules, watched
from tests.page.conftest import needs_chromium, needs_node
from tests.support.drawing import jpeg, picture
from tests.support.long import long
from tests.support.videos import shown, video

pytestmark = needs_chromium


def ask_in_chat(page: Watched, text: str) -> None:
    page.page.locator("#chat-text").fill(text)
    page.page.locator("#chat-send").click()


def take_the_likeliest_words(page: Watched) -> None:
    """A small model answers what it is unsure of one way or another."""
    page.page.locator("#settings summary").click()
    page.page.locator("#set-temperature").fill("0")


def test_chat_with_a_picture_a_recording_and_speech(page: Watched, tmp_path: Path) -> None:
    answers = page.page.locator("#chat .model")
    take_the_likeliest_words(page)
    page.show("chat")
    ask_in_chat(page, "what is two plus three")
    expect(answers.last).to_contain_text("two plus three is five")
    expect(page.page.locator("#chat-send")).to_be_visible()

    (tmp_path / "circle.jpg").write_bytes(jpeg())
    page.page.locator("#chat-file").set_input_files(tmp_path / "circle.jpg")
    expect(page.page.locator("#chat-parts li")).to_have_count(1)
    ask_in_chat(page, "what do you see")
    expect(answers.last).to_contain_text("red circle")
    expect(page.page.locator("#chat .you img")).to_be_visible()
    expect(page.page.locator("#chat-send")).to_be_visible()

    assert [message["role"] for message in page.sent[-1]["messages"]] == ["user", "assistant", "user"]

    page.page.locator("#chat-clear").click()
    page.page.locator("#chat-speak").check()
    page.page.locator("#chat-file").set_input_files(RECORDINGS / "name.wav")
    expect(page.page.locator("#chat-parts li")).to_have_count(1)
    page.page.locator("#chat-send").click()
    expect(answers.last).to_contain_text("my name is antiphon")
    expect(page.page.locator("#chat-send")).to_be_visible()
    page.page.wait_for_function("() => window.tap.played()[1].some((level) => Math.abs(level) > 0.05)")


@pytest.mark.long
def test_chat_with_a_video_that_is_seen_and_heard(page: Watched, tmp_path: Path) -> None:
    answers = page.page.locator("#chat .model")
    for name, sound in (("silent", None), ("spoken", read_wav(RECORDINGS / "light.wav"))):
        frames = shown(picture("blue", "square"), 2.0 if sound is None else len(sound) / 16_000)
        data = video(frames, rate=10, container="webm", codec="libvpx-vp9", sound=sound)
        (tmp_path / f"{name}.webm").write_bytes(data)
    take_the_likeliest_words(page)
    page.show("chat")
    for name, text, told in (("silent", "what do you see", "blue square"), ("spoken", "", "the light is on")):
        page.page.locator("#chat-clear").click()
        page.page.locator("#chat-file").set_input_files(tmp_path / f"{name}.webm")
        expect(page.page.locator("#chat-parts li")).to_have_text(f"video {name}.webm ×")
        ask_in_chat(page, text)
        expect(page.page.locator("#chat .you video")).to_be_visible()
        expect(answers.last).to_contain_text(told)
        expect(page.page.locator("#chat-send")).to_be_visible()

    page.page.wait_for_function("() => document.querySelector('#chat .you video').readyState > 0")
    assert page.sent[-1]["omni_mode"] is True
    assert page.sent[-1]["messages"][0]["content"][0]["type"] == "video"


@pytest.mark.long
def test_video_that_is_too_large_is_not_sent(page: Watched) -> None:
    page.show("chat")
    large = {"name": "long.mp4", "mimeType": "video/mp4", "buffer": bytes(24 * 2**20)}
    page.page.locator("#chat-file").set_input_files([large])  # type: ignore[list-item]
    expect(page.page.locator("#failure")).to_contain_text("too large for a server")
    expect(page.page.locator("#chat-parts li")).to_have_count(0)


def test_recording_and_speech_are_written_down(page: Watched) -> None:
    page.show("transcription")
    page.page.locator("#tr-file").set_input_files(RECORDINGS / "counting.wav")
    text = page.page.locator("#tr-text")
    expect(text).to_contain_text("count up to eight now")
    expect(page.page.locator("#tr-start")).to_be_visible()

    page.page.locator("#tr-start").click()
    expect(page.page.locator("#tr-stop")).to_be_visible()
    assert page.live_devices() == 1
    page.page.wait_for_timeout(4500)
    page.page.locator("#tr-stop").click()

    # Where a second is cut decides what this model mishears of it.
    expect(text).to_contain_text(re.compile(r"eight now\s+.*\byou\b"))
    expect(page.page.locator("#tr-start")).to_be_visible()
    assert page.live_devices() == 0


@needs_node
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.sample("light")
@long
def test_accessibility_has_no_findings(browser: Browser, adapter: str, scheme: str) -> None:
    axe = (make_client_modules() / "axe-core" / "axe.min.js").read_text()
    locale, size = ("en-US", {"width": 1240, "height": 900}) if scheme == "light" else ("zh-CN", PHONE)
    with watched(browser, adapter, color_scheme=scheme, viewport=size, locale=locale) as page:
        page.page.evaluate(axe)
        for summary in page.page.locator("summary").all():
            if summary.locator("..").get_attribute("open") is None:
                summary.click()
        page.ask("name")
        page.expect_said("my name is antiphon")
        findings = violations(page)
        page.page.locator("#stop").click()
        page.page.locator("#recording").set_input_files(Path(__file__))
        page.expect_failure("file", "")
        for tab in ("conversation", "chat", "transcription"):
            page.show(tab)
            findings += violations(page)
        assert findings == []


def violations(page: Watched) -> list[str]:
    found = page.page.evaluate("axe.run({ resultTypes: ['violations'] })")["violations"]
    return [f"{one['id']}: {[node['html'][:90] for node in one['nodes']]}" for one in found]


@needs_node
def test_accessibility_check_finds_violation(page: Watched) -> None:
    page.page.evaluate((make_client_modules() / "axe-core" / "axe.min.js").read_text())
    page.page.evaluate("document.querySelector('#start').textContent = ''")
    assert any(finding.startswith("button-name") for finding in violations(page))


def test_everything_is_reached_by_the_keyboard(page: Watched) -> None:
    page.page.keyboard.press("Tab")
    assert page.page.evaluate("document.activeElement.className") == "skip"
    take_the_likeliest_words(page)
    page.page.locator("#tab-conversation").focus()
    page.page.keyboard.press("ArrowRight")
    expect(page.page.locator("#panel-chat")).to_be_visible()
    page.page.locator("#chat-text").focus()
    page.page.keyboard.type("what is your name")
    page.page.keyboard.press("Enter")
    expect(page.page.locator("#chat .model")).to_contain_text("antiphon")


def test_language_colours_and_python_are_one_click(page: Watched) -> None:
    page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.page.locator("#language").click()
    expect(page.page.locator("#start")).to_have_text("开始说话")
    expect(page.page.locator("html")).to_have_attribute("lang", "zh")
    page.page.locator("#theme").click()
    expect(page.page.locator("html")).to_have_attribute("data-theme", "dark")
    page.page.reload()
    expect(page.page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(page.page.locator("#start")).to_have_text("开始说话")

    page.page.locator("#settings summary").click()
    page.page.locator("#set-prompt").fill('Be "brief".')
    page.page.locator("#set-top_k").fill("5")
    page.page.locator("#developer summary").click()
    page.page.locator("#python-copy").click()
    code: str = page.page.evaluate("navigator.clipboard.readText()")

    compile(code, "page.py", "exec")
    assert 'client.duplex(instructions="Be \\"brief\\".", settings={"top_k": 5})' in code
    assert page.origin.replace("http", "ws") in code
