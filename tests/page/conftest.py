"""One service for all tests of the page, and one browser for each module.

A browser is driven from a loop of its own, beside which no test of another folder could run one.
"""

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from tests.e2e.conftest import running_adapter, running_worker
from tests.page.browser import EXECUTABLE, RECORDINGS, Watched, running_browser, running_context, watched_in
from tests.support.patience import PATIENCE_MS

SLOTS = 8
expect.set_options(timeout=PATIENCE_MS)

needs_chromium = pytest.mark.skipif(
    EXECUTABLE is None, reason="Chromium is not installed here: apt-get install chromium"
)
needs_node = pytest.mark.skipif(
    shutil.which("npm") is None, reason="Node is not installed here: apt-get install nodejs npm (20 or newer)"
)


@pytest.fixture(scope="session")
def worker() -> Iterator[str]:
    with running_worker(slots=SLOTS) as server:
        yield server.address


@pytest.fixture(scope="session")
def adapter(worker: str) -> Iterator[str]:
    with running_adapter(worker) as server:
        yield server.address


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser(RECORDINGS / "name.wav") as browser:
        yield browser


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    with running_context(browser, viewport={"width": 1240, "height": 900}) as context:
        yield context


@pytest.fixture
def page(context: BrowserContext, adapter: str) -> Iterator[Watched]:
    with watched_in(context, adapter) as page:
        yield page
