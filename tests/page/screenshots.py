"""`python -m tests.page.screenshots DIRECTORY`: the web page in each of its states, as pictures.

A worker with the shipped model and an adapter in front of it, driven by Chromium: what is seen happened.
"""

import argparse
from contextlib import ExitStack
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.e2e.conftest import running_adapter, running_worker
from tests.page.browser import PHONE, RECORDINGS, Watched, running_browser, watched
from tests.page.test_failures import NO_SOCKET, REFUSED, holders
from tests.page.test_status import administration
from tests.support.drawing import jpeg
from tests.support.drawing import picture as drawn
from tests.support.videos import shown, video

SLOTS = 2
WIDE = {"width": 1240, "height": 1060}
STATUS = {"width": 1100, "height": 800}
LONG_MS = 30_000
MOMENT_MS = 6_000
"""Longer than an adapter lets pass between two figures of its last minutes."""


class Studio:
    """Takes pictures of the page of one adapter."""

    def __init__(self, browser: Browser, address: str, folder: Path) -> None:
        self._browser = browser
        self._address = address
        self._folder = folder

    def take(self, page: Watched, name: str) -> None:
        page.page.mouse.move(0, 0)
        page.page.screenshot(path=self._folder / f"{name}.png")

    def conversation(self) -> None:
        """Ready, listening, speaking, camera, interrupted, ended: in light."""
        with watched(self._browser, self._address, viewport=WIDE, color_scheme="light") as page:
            self.take(page, "ready")
            page.ask("name")
            page.expect_said("my name is antiphon")
            page.expect_state("listening")
            page.ask("joke")
            page.expect_state("speaking")
            page.page.wait_for_timeout(2000)
            self.take(page, "speaking")
            page.page.locator("#force-listen").click()
            page.expect_state("listening")
            page.page.locator("#stop").click()
            page.expect_state("closed")
            self.take(page, "ended")

    def camera(self) -> None:
        with watched(self._browser, self._address, viewport=WIDE, color_scheme="dark") as page:
            page.page.locator("#with-camera").check()
            page.page.locator("#recording").set_input_files(RECORDINGS / "vision.wav")
            expect(page.page.locator("#timeline .model .said").last).to_contain_text(
                "circle", timeout=LONG_MS
            )
            self.take(page, "camera")

    def developer(self) -> None:
        with watched(self._browser, self._address, viewport=WIDE, color_scheme="dark") as page:
            page.ask("how_are_you")
            page.expect_said("i am fine thank you")
            page.page.locator("aside details").first.locator("summary").click()
            page.page.locator("#developer summary").click()
            page.page.locator("#developer").scroll_into_view_if_needed()
            self.take(page, "developer")

    def chat(self, picture: Path, film: Path) -> None:
        with watched(self._browser, self._address, viewport=WIDE, color_scheme="light") as page:
            page.show("chat")
            for text, attached in (
                ("what is two plus three", None),
                ("what do you see", picture),
                ("what do you see", film),
            ):
                if attached is not None:
                    page.page.locator("#chat-file").set_input_files(attached)
                    expect(page.page.locator("#chat-parts li")).to_have_count(1)
                page.page.locator("#chat-text").fill(text)
                page.page.locator("#chat-send").click()
                expect(page.page.locator("#chat .model small").last).not_to_be_empty(timeout=LONG_MS)
                expect(page.page.locator("#chat-send")).to_be_visible(timeout=LONG_MS)
            self.take(page, "chat")
            page.show("transcription")
            page.page.locator("#tr-file").set_input_files(RECORDINGS / "counting.wav")
            expect(page.page.locator("#tr-text")).to_contain_text("eight", timeout=LONG_MS)
            expect(page.page.locator("#tr-start")).to_be_visible(timeout=LONG_MS)
            self.take(page, "transcription")

    def phone(self) -> None:
        with watched(
            self._browser, self._address, viewport=PHONE, locale="zh-CN", color_scheme="dark"
        ) as page:
            page.ask("name")
            page.expect_said("my name is antiphon")
            self.take(page, "phone")

    def status(self, address: str) -> None:
        """The status page at `address` after half a minute in which clients came, waited and left."""
        with ExitStack() as stack:
            page = stack.enter_context(self._browser.new_context(viewport=STATUS)).new_page()
            for count in (0, 1, 3, 2, 0, 2):
                with ExitStack() as clients:
                    holders(clients, self._address, count)
                    page.wait_for_timeout(MOMENT_MS)
            holders(stack, self._address, SLOTS + 1)
            page.wait_for_timeout(MOMENT_MS)
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                page.goto(address)
                page.screenshot(path=self._folder / f"status-{scheme}.png")

    def queue_and_failure(self) -> None:
        with ExitStack() as stack:
            page = stack.enter_context(
                watched(self._browser, self._address, REFUSED, NO_SOCKET, viewport=WIDE, color_scheme="light")
            )
            holders(stack, self._address, SLOTS)
            page.ask("name")
            page.expect_state("queued")
            self.take(page, "queued")
            page.page.locator("#stop").click()
            page.page.evaluate(
                "() => { navigator.mediaDevices.getUserMedia ="
                " () => Promise.reject(new DOMException('', 'NotAllowedError')) }"
            )
            page.page.locator("#start").click()
            page.expect_failure("denied", "not allowed")
            self.take(page, "refused")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.page.screenshots", description=__doc__)
    parser.add_argument("directory", type=Path, help="where the pictures go")
    folder: Path = parser.parse_args().directory
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / "shape.jpg"
    picture.write_bytes(jpeg("blue", "square"))
    film = folder / "shape.webm"
    film.write_bytes(video(shown(drawn("red", "circle"), 3.0), rate=10, container="webm", codec="libvpx-vp9"))
    try:
        with (
            running_worker(slots=SLOTS) as worker,
            running_adapter(worker.address, "--admin-port", "0") as adapter,
            running_browser(RECORDINGS / "name.wav") as browser,
        ):
            studio = Studio(browser, adapter.address, folder)
            studio.conversation()
            studio.camera()
            studio.developer()
            studio.chat(picture, film)
            studio.phone()
            studio.queue_and_failure()
            studio.status(administration(adapter))
    finally:
        picture.unlink()
        film.unlink()


if __name__ == "__main__":
    main()
