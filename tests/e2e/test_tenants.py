"""Two tenants of the shipped model: what each may use, and what the log says of it."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

from antiphon.grpc import Session, acquire
from antiphon.grpc.outputs import Finalized, UnitDone
from antiphon.v1 import inference_service_pb2 as pb
from tests.cli.support.process import Outcome, run_cli
from tests.e2e.conftest import Server, running_adapter, running_worker
from tests.support.patience import PATIENCE_S
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.stage import until

CONFIG = pb.SessionConfig(mode=pb.SESSION_MODE_CHAT)


def ask(adapter: Server, key: Path) -> Outcome:
    return run_cli("chat", "what is your name", "--url", adapter.address, "--key-file", key)


async def ask_directly(port: str, key: str) -> int:
    tokens = 0
    async with asyncio.timeout(PATIENCE_S), acquire(port, "chat", key=key) as lease:
        async with Session.open(lease, CONFIG) as session:
            await session.send_turn("what is your name")
            async for output in session:
                if isinstance(output, UnitDone):
                    usage = output.usage
                    tokens = usage.output_text_tokens + usage.output_audio_tokens
                if isinstance(output, Finalized):
                    break
    return tokens


async def test_tenants_are_counted_and_bounded(tmp_path: Path) -> None:
    log, small, large = tmp_path / "usage.jsonl", tmp_path / "small", tmp_path / "large"
    keys = KeyFile(tmp_path / "keys")
    keys.add("small", seconds_per_day="1")
    keys.add("large", seconds_per_day="3600")
    small.write_text(keys.secrets["small"])
    large.write_text(keys.secrets["large"])
    options = ("--auth", "keys", "--keys", str(keys.path), "--usage-log", str(log), "--grpc-port", "0")
    with running_worker() as worker, running_adapter(worker.address, *options) as adapter:
        assert (await asyncio.to_thread(ask, adapter, small)).code == 0
        await until(lambda: len(lines(log)) == 1)
        refused = await asyncio.to_thread(ask, adapter, small)
        assert refused.code != 0
        assert "quota" in refused.err
        assert (await asyncio.to_thread(ask, adapter, large)).code == 0
        await until(lambda: len(lines(log)) == 3)
        port = re.search(r"direct callers on \S+ port (\d+)", adapter.said)
        assert port is not None
        tokens = await ask_directly(f"127.0.0.1:{port[1]}", keys.secrets["large"])
        await until(lambda: len(lines(log)) == 4)

    *chats, direct = lines(log)
    assert sorted((line["key"], line["seconds"] > 0) for line in chats) == [
        *(("large", True), ("small", False), ("small", True))
    ]
    spoken = next(line for line in chats if line["key"] == "large")
    assert spoken["model"] == direct["model"] == "antiphon-mini"
    assert spoken["input_tokens"] > 0
    assert spoken["output_tokens"] > 0
    assert (direct["via"], direct["output_tokens"]) == ("grpc", tokens)

    summed = run_cli("usage", log)
    assert summed.code == 0
    assert [row.split()[1:4] for row in summed.out.splitlines()[1:]] == [
        ["large", "antiphon-mini", "2"],
        ["small", "-", "1"],
        ["small", "antiphon-mini", "1"],
    ]


def lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in log.read_bytes().splitlines()]
