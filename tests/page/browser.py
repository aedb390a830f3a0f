"""A Chromium whose microphone and camera are files, and a page in it that is watched."""

import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect, sync_playwright

from antiphon.audio.samples import from_base64
from antiphon.audio.wav import read_wav, write_wav
from clients.recordings import make
from tests.support.patience import PATIENCE_MS, PATIENCE_S

RECORDINGS = Path(make.__file__).parent
EXECUTABLE = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


LEAD_S = 2
"""Before somebody speaks into a microphone that was opened: a session begins meanwhile."""

PHONE = {"width": 375, "height": 740}

TAP = (Path(__file__).parent / "tap.js").read_text()
"""Keeps what the page plays, and the microphones it opened."""


def picture(path: Path, side: int = 240) -> Path:
    """A camera that sees a red circle on black, as a Y4M film of one second."""
    y, x = np.mgrid[:side, :side]
    inside = (x - side / 2) ** 2 + (y - side / 2) ** 2 < (side / 3.2) ** 2
    luma = np.where(inside, 82, 16).astype(np.uint8)
    small = inside[::2, ::2]
    planes = luma.tobytes() + np.where(small, 90, 128).astype(np.uint8).tobytes()
    planes += np.where(small, 240, 128).astype(np.uint8).tobytes()
    head = f"YUV4MPEG2 W{side} H{side} F10:1 Ip A1:1 C420jpeg\n".encode()
    path.write_bytes(head + (b"FRAME\n" + planes) * 10)
    return path


@contextmanager
def running_browser(microphone: Path) -> Iterator[Browser]:
    """The browser; `microphone` is what is said into it, once, shortly after it is opened."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        film = picture(Path(folder) / "camera.y4m")
        said = Path(folder) / "said.wav"
        write_wav(said, np.pad(read_wav(microphone), (LEAD_S * 16_000, 0)), 16_000)
        arguments = [
            "--no-sandbox",  # tests may run as root
            *("--disable-gpu", "--disable-software-rasterizer", "--disable-extensions"),
            "--use-fake-ui-for-media-stream",
            "--use-fake-device-for-media-stream",
            f"--use-file-for-fake-audio-capture={said}%noloop",
            f"--use-file-for-fake-video-capture={film}",
            # A name without a dot that means this machine, but not to a browser: no secure context.
            "--host-resolver-rules=MAP gateway 127.0.0.1",
        ]
        browser = playwright.chromium.launch(executable_path=EXECUTABLE, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Watched:
    """The page of one server, and all that came of it."""

    page: Page
    origin: str
    said: list[str] = field(default_factory=list)
    """Messages on the console, and errors."""
    foreign: list[str] = field(default_factory=list)
    """Requests to anybody else."""
    received: list[dict[str, Any]] = field(default_factory=list)
    sent: list[dict[str, Any]] = field(default_factory=list)
    may_say: tuple[str, ...] = ()
    """Console messages of the browser itself about a refusal that a test provokes."""

    def open(self) -> "Watched":
        self.page.on("console", lambda message: self._say(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self._say(str(error)))
        self.page.on("request", lambda request: self._asked(request.url))
        self.page.on("websocket", self._watch)
        self.page.goto(self.origin)
        expect(self.page.locator("html[data-ready=yes]")).to_be_attached()
        return self

    def _say(self, text: str) -> None:
        if not any(it in text for it in self.may_say):
            self.said.append(text)

    def _asked(self, url: str) -> None:
        if not url.startswith((self.origin, "blob:", "data:")):
            self.foreign.append(url)

    def _watch(self, socket: Any) -> None:
        if not socket.url.startswith(self.origin.replace("http", "ws")):
            self.foreign.append(socket.url)
        socket.on("framereceived", lambda frame: self.received.append(json.loads(frame)))
        socket.on("framesent", lambda frame: self.sent.append(json.loads(frame)))

    def types_sent(self) -> list[str]:
        return [event.get("type", "") for event in self.sent]

    def ask(self, name: str) -> None:
        """Clicks on an example question."""
        self.page.locator(f"[data-example={name}]").click()

    def expect_state(self, *states: str) -> None:
        pattern = ", ".join(f'#stage[data-state="{state}"]' for state in states)
        expect(self.page.locator(pattern)).to_be_attached()

    def expect_said(self, text: str) -> None:
        """The last answer is `text`, or begins with its first three words and goes on.

        The model draws its words: about one answer in 400 to the page's own recordings ends otherwise.
        """
        first = " ".join(text.split()[:3])
        expect(self._said).to_have_text(re.compile(rf"^\s*{re.escape(first)} \S"))

    def expect_shown_as_sent(self) -> None:
        """The last answer is what the server sent, in the dialect of today."""
        shown = self._said.inner_text().split()
        ends = time.monotonic() + PATIENCE_S
        while (sent := self._last_answer().split()[: len(shown)]) != shown:
            assert time.monotonic() < ends, (sent, shown)
            self.page.wait_for_timeout(50)  # what came is told apart from what it did

    @property
    def _said(self) -> Locator:
        return self.page.locator("#timeline .model .said").last

    def _last_answer(self) -> str:
        texts = [event for event in self.received if event.get("kind") == "text"]
        return "".join(it["text"] for it in texts if it["response_id"] == texts[-1]["response_id"])

    def expect_failure(self, name: str, text: str) -> None:
        box = self.page.locator(f'#failure[data-failure="{name}"]')
        expect(box).to_be_visible()
        expect(box).to_contain_text(text)
        assert box.locator("p").inner_text(), "a failure says what to do next"

    def show(self, tab: str) -> None:
        self.page.locator(f"#tab-{tab}").click()

    def live_devices(self) -> int:
        """Tracks of microphones and cameras that are live."""
        count: int = self.page.evaluate("window.tap.live()")
        return count

    def wait_played(self, samples: int) -> None:
        """Waits until more than so many have come out of the playback."""
        self.page.wait_for_function("n => window.tap.played()[1].length > n", arg=samples)

    def played(self) -> tuple[NDArray[np.float32], int]:
        """All samples that came out of the playback so far, and their rate."""
        rate, samples = self.page.evaluate("window.tap.played()")
        return np.array(samples, np.float32), int(rate)

    def answered(self) -> list[NDArray[np.float32]]:
        """The samples that the server sent, unit by unit, at 24 kHz."""
        return [from_base64(event["audio"]) for event in self.received if event.get("kind") == "audio"]


@contextmanager
def watched(browser: Browser, origin: str, *may_say: str, **options: Any) -> Iterator[Watched]:
    """A page in a context of its own; fails if it said anything or asked anybody else."""
    with running_context(browser, **options) as context, watched_in(context, origin, *may_say) as page:
        yield page


@contextmanager
def running_context(browser: Browser, **options: Any) -> Iterator[BrowserContext]:
    """As another browser to pages; costs more than a page."""
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script(TAP)
    try:
        yield context
    finally:
        context.close()


@contextmanager
def watched_in(context: BrowserContext, origin: str, *may_say: str) -> Iterator[Watched]:
    """See `watched`; nothing of it is kept for the next page of the context."""
    page = Watched(context.new_page(), origin.rstrip("/"), may_say=may_say).open()
    try:
        yield page
        assert page.said == []
        assert page.foreign == []
    finally:
        page.page.evaluate("localStorage.clear()")
        page.page.close()


def make_client_modules() -> Path:
    """The packages of `clients/browser`, installed; needs npm."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        ("make", "--no-print-directory", "browser-modules"),
        cwd=root,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return root / "clients" / "browser" / "node_modules"
