"""The files of the web page, over HTTP: what is served, how, and what is not."""

import json
from pathlib import Path

import pytest

from tests.ws_adapter.server.test_origin import status_of
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.pools import catalogue
from tests.ws_adapter.support.stage import Stage, running_adapter
from tests.ws_adapter.web.test_http1 import fetch
from ws_adapter.dispatch.base import PoolStatus
from ws_adapter.options import AdapterOptions
from ws_adapter.pages.files import FOLDER, LOOK, POLICY, read_files
from ws_adapter.pages.responses import about

DISPATCHER = "redis://127.0.0.1"


async def test_page_and_its_files_come_with_their_types_and_a_strict_policy(lonely: Stage) -> None:
    for target, kind in {
        "/": "text/html; charset=utf-8",
        "/?anything": "text/html; charset=utf-8",
        "/page/main.js": "text/javascript; charset=utf-8",
        "/page/client/duplex.js": "text/javascript; charset=utf-8",
        "/page/look.css": "text/css; charset=utf-8",
        "/page/icon.svg": "image/svg+xml",
        "/page/questions/name.wav": "audio/wav",
    }.items():
        status, headers, body = await fetch(lonely, target)
        assert (status, headers["content-type"]) == (200, kind), target
        assert headers["content-security-policy"] == POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert int(headers["content-length"]) == len(body) > 0


def test_policy_allows_nothing_inline_and_nothing_from_elsewhere() -> None:
    assert POLICY.startswith("default-src 'none'")
    assert "unsafe" not in POLICY
    assert "http" not in POLICY
    page = (FOLDER / "index.html").read_text()
    assert "style=" not in page
    assert "<style" not in page
    assert not any(f" on{event}=" in page for event in ("click", "load", "error", "input", "submit"))


async def test_browser_that_has_a_file_gets_no_body_and_head_the_headers_alone(lonely: Stage) -> None:
    _, headers, _ = await fetch(lonely, "/page/main.js")
    tag = headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        status, again, body = await fetch(lonely, "/page/main.js", headers={"If-None-Match": known})
        assert (status, body, again["etag"]) == (304, b"", tag), known
    status, _, body = await fetch(lonely, "/page/main.js", headers={"If-None-Match": '"other"'})
    assert (status, len(body)) == (200, int(headers["content-length"]))
    _, headers, _ = await fetch(lonely, "/")
    assert await fetch(lonely, "/", method="HEAD") == (200, headers, b"")


ATTACKS = [
    *("/page/../files.py", "/page/../../app.py", "/page/%2e%2e/files.py", "/page/..%2ffiles.py"),
    *("/page//etc/passwd", "/page/client/../../keys.py", "/page/client/events.d.ts", "/page/.", "/page/"),
    *("/page", "/page/questions", "/page/main.js%00.html", "/files.py"),
]


async def test_no_path_leads_out_of_the_folder_and_files_are_only_read(lonely: Stage) -> None:
    """Attack."""
    for target in ATTACKS:
        status, headers, _ = await fetch(lonely, target)
        assert (status, headers["content-type"]) == (404, "application/json"), target
    status, headers, _ = await fetch(lonely, "/page/main.js/")
    assert (status, headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    for method in ("POST", "PUT", "DELETE"):
        status, headers, _ = await fetch(lonely, "/page/main.js", method=method)
        assert (status, headers["allow"]) == (405, "GET, HEAD")


async def test_page_can_be_left_out() -> None:
    async with running_adapter("127.0.0.1:1", wait=False, no_page=True) as stage:
        for target in ("/", "/page/main.js", "/page/about.json"):
            assert (await fetch(stage, target))[0] == 404


async def test_with_keys_the_page_comes_without_one_and_says_that_it_needs_one(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys", "alice")
    async with running_adapter("127.0.0.1:1", wait=False, auth="keys", keys=keys.path) as stage:
        assert (await fetch(stage, "/"))[0] == 200
        status, _, about = await stage.request("/page/about.json")
        assert (status, about["needs_key"], about["models"]) == (200, True, [])
        assert (await fetch(stage, "/v1/models"))[0] == 401


@pytest.mark.parametrize("auth", ["off", "keys", "redis"])
def test_models_are_named_without_a_key_only_where_none_is_needed(auth: str) -> None:
    options = AdapterOptions(auth=auth, keys=Path("keys") if auth == "keys" else None, dispatcher=DISPATCHER)
    told = json.loads(about(PoolStatus(1, 1, 1, 0), catalogue(), options, None).body)
    assert told["needs_key"] is (auth != "off")
    assert bool(told["models"]) is (auth == "off")


async def test_page_own_origin_may_connect_for_any_allowed_origins() -> None:
    async with running_adapter("127.0.0.1:1", wait=False, allowed_origins=("https://example.org",)) as stage:
        host = stage.address.removeprefix("http://")
        assert await status_of(stage, Origin=stage.address) == 101
        assert await status_of(stage, Origin=f"https://{host}") == 101  # behind a proxy that speaks TLS
        assert await status_of(stage, Origin="http://127.0.0.1:1") == 403
        assert await status_of(stage, Origin="null") == 403


def test_files_are_read_once_and_bounded() -> None:
    files = read_files()
    assert {"index.html", "main.js", LOOK} <= files.keys()
    assert all(file.content for file in files.values())
    scripts = sum(len(file.content) for name, file in files.items() if name.endswith(".js"))
    assert scripts < 150_000, "the page stays small"
