"""The drain button of the status page, and the lines of the last minutes."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted_engine import ScriptedEngine, listen
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.stage import Stage, running_adapter, serving
from ws_adapter.observability.chart import ChartPoint, lines


async def ask(stage: Stage, method: str, *headers: dict[str, str], path: str = "/drain") -> tuple[int, str]:
    """Status and everything that was answered."""
    port = stage.adapter.admin_port
    told = [f"{name}: {value}" for fields in headers for name, value in fields.items()]
    lines = [f"{method} {path} HTTP/1.1", f"Host: localhost:{port}", *told, "", ""]
    answer = (await stage.exchange("\r\n".join(lines).encode(), port)).decode()
    return int(answer.split()[1]), answer


async def test_button_asks_first_then_drains_and_lets_sessions_finish() -> None:
    async with serving(ScriptedEngine(listen(), slots=2), admin_port=0) as stage, stage.client() as client:
        await client.begin()
        assert 'href="/drain"' in (await ask(stage, "GET", path="/"))[1]
        status, page = await ask(stage, "GET")
        assert status == 200
        assert '<form method="post" action="/drain">' in page
        assert "http-equiv" not in page
        await stage.until(draining=False)

        port = stage.adapter.admin_port
        status, answer = await ask(
            stage, "POST", {"Origin": f"http://localhost:{port}", "Content-Length": "0"}
        )

        assert (status, "Location: /" in answer) == (303, True)
        await stage.until(draining=True)
        assert (await ask(stage, "POST"))[0] == 303
        assert not stage.task.done(), "asked twice it still lets the session finish"
        page = (await ask(stage, "GET", path="/"))[1]
        assert "draining" in page
        assert 'href="/drain"' not in page


async def test_with_keys_only_an_admin_drains(tmp_path: Path) -> None:
    """By a bearer, or the password that a browser was told."""
    keys = KeyFile(tmp_path / "keys", "alice", "admin")
    options: dict[str, Any] = {"auth": "keys", "keys": keys.path, "admin_port": 0}
    async with running_adapter("127.0.0.1:1", wait=False, **options) as stage:
        own = {"Origin": f"http://localhost:{stage.adapter.admin_port}"}
        assert (await ask(stage, "POST"))[0] == 401
        assert (await ask(stage, "POST", keys.bearer("alice")))[0] == 403
        assert (await ask(stage, "POST", own, keys.basic("alice")))[0] == 401
        assert (await ask(stage, "POST", own, {"Authorization": "Basic Ondyb25n"}))[0] == 401
        await stage.until(draining=False)
        assert (await ask(stage, "POST", keys.bearer("admin")))[0] == 303
        assert (await ask(stage, "POST", own, keys.basic("admin", "anybody")))[0] == 303


@pytest.mark.parametrize("has_keys", [False, True])
async def test_drain_post_from_foreign_origin_is_rejected(has_keys: bool, tmp_path: Path) -> None:
    """Attack: a page of another origin, also one of another port of this machine, posts the form.

    The browser sends the password that it keeps of the status page along with it.
    """
    keys = KeyFile(tmp_path / "keys", "admin")
    options: dict[str, Any] = {"auth": "keys", "keys": keys.path} if has_keys else {}
    kept = keys.basic("admin") if has_keys else {}
    async with running_adapter("127.0.0.1:1", wait=False, admin_port=0, **options) as stage:
        for origin in ("https://evil.net", "http://localhost:3000", "http://localhost", "null"):
            for forwarded in ({}, {"X-Forwarded-For": "203.0.113.9"}):
                assert (await ask(stage, "POST", {"Origin": origin}, forwarded, kept))[0] == 403, origin
        await stage.until(draining=False)


def test_lines_show_the_last_minutes() -> None:
    moments = [ChartPoint(60.0 * i, sessions=i, queue=3 - i, misses=0) for i in range(4)]

    drawn = lines(moments)

    assert drawn.count("<svg") == 3
    assert "sessions of the last 3.0 min: now 3, at most 3" in drawn
    assert '<polyline points="0.0,47.0 80.0,31.7 160.0,16.3 240.0,1.0"/>' in drawn
    assert "style=" not in drawn
    assert drawn.count('class="chart still"') == 1, "no misses are no alarm"
    assert lines(moments[:1]) == ""
