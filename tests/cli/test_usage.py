"""`antiphon usage` and `antiphon share-keys`."""

import json
from pathlib import Path
from typing import Any

from tests.cli.support.process import run_cli
from tests.support.redis_server import RedisServer
from ws_adapter.usage.line import UsageLine, encode

SESSION: Any = {
    **{"session_id": "sess_1", "model": "antiphon-mini", "mode": "chat", "dialect": "chat"},
    **{"via": "websocket", "reason": "done"},
}


def line(day: str, key: str | None, seconds: float, tokens: int) -> bytes:
    told = UsageLine(
        at=f"{day}T12:00:00.000+00:00",
        key=key,
        key_id="0123456789ab" if key else None,
        seconds=seconds,
        input_tokens=tokens,
        output_tokens=2 * tokens,
        **SESSION,
    )
    return encode(told) + b"\n"


def test_log_is_summed_by_day_key_and_model(tmp_path: Path) -> None:
    one, other = tmp_path / "usage.jsonl.1", tmp_path / "usage.jsonl"
    one.write_bytes(line("2026-11-26", "alice", 1.5, 10) + line("2026-11-27", "bob", 3, 1))
    other.write_bytes(line("2026-11-26", "alice", 2, 30) + b'{"v":1,"at\n' + line("2026-11-27", None, 4, 5))

    done = run_cli("usage", one, other)

    assert done.code == 0
    assert [row.split() for row in done.out.splitlines()[1:]] == [
        ["2026-11-26", "alice", "antiphon-mini", "2", "3.5", "40", "80"],
        ["2026-11-27", "-", "antiphon-mini", "1", "4.0", "5", "10"],
        ["2026-11-27", "bob", "antiphon-mini", "1", "3.0", "1", "2"],
    ]
    assert done.err == "Unreadable lines, which are left out: 1\n"
    rows = [json.loads(row) for row in run_cli("usage", "--json", one).out.splitlines()]
    absent = run_cli("usage", tmp_path / "none")
    assert (absent.code, "No such file" in absent.err) == (2, True)
    assert rows[0] == {
        **{"day": "2026-11-26", "key": "alice", "model": "antiphon-mini", "sessions": 1},
        **{"seconds": 1.5, "input_tokens": 10, "output_tokens": 20},
    }


def test_share_keys_writes_the_keys_to_redis(tmp_path: Path, redis_server: RedisServer) -> None:
    path = tmp_path / "keys"
    path.write_text(run_cli("key", "alice", "--seconds-per-day", "3600", "--priority", "high").out)

    done = run_cli("share-keys", path, "--dispatcher", redis_server.url)

    assert (done.code, done.out) == (0, "1 key is shared\n")
    assert path.read_text().strip().encode() in redis_server.command("GET", "antiphon:{tenants}:keys")


def test_share_keys_refuses_a_file_without_keys(tmp_path: Path, redis_server: RedisServer) -> None:
    path = tmp_path / "keys"
    path.write_text("ak_a-secret-by-mistake\n")

    done = run_cli("share-keys", path, "--dispatcher", redis_server.url)

    assert done.code == 2
    assert "is no key" in done.err
    assert "ak_a" not in done.err
    assert redis_server.command("GET", "antiphon:{tenants}:keys") == b"$-1"
