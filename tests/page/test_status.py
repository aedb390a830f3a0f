"""The status page in a real browser, which asks for the key of an admin."""

import re
from pathlib import Path

from playwright.sync_api import Browser

from tests.e2e.conftest import Server, running_adapter
from tests.page.conftest import needs_chromium
from tests.support.patience import PATIENCE_S
from tests.ws_adapter.support.keyfile import KeyFile

pytestmark = needs_chromium


def administration(adapter: Server) -> str:
    """The address of its status page."""
    found = re.search(r"administration on \S+ port (\d+)", adapter.said)
    assert found, adapter.said
    return f"http://127.0.0.1:{found[1]}/"


def test_browser_with_admin_key_opens_status_page_and_drains(
    browser: Browser, worker: str, tmp_path: Path
) -> None:
    keys = KeyFile(tmp_path / "keys", "alice", "admin")
    options = ("--auth", "keys", "--keys", str(keys.path), "--admin-port", "0")
    with running_adapter(worker, *options) as adapter:
        address = administration(adapter)
        for name, status in (("alice", 401), ("admin", 200)):
            told = {"username": "", "password": keys.secrets[name]}
            with browser.new_context(http_credentials=told) as context:
                page = context.new_page()
                answer = page.goto(address)
                assert answer is not None
                assert answer.status == status
                if status == 200:
                    page.get_by_role("link", name="Drain").click()
                    page.get_by_role("button", name="Drain this adapter").click()
        assert adapter.process.wait(timeout=PATIENCE_S) == 0
