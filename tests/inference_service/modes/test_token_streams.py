"""Streaming input over gRPC with a real engine and a causal language model made on the spot."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from antiphon.contract import Reason
from antiphon.grpc import get_info
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.app import load_engine
from inference_service.session.units import Stream
from tests.inference_service.engine.support import tiny_causal
from tests.inference_service.support.caller import Caller, channel_to, until_free
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import running_worker

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "clients/python/examples/stream.py"
DOCUMENTATION = ROOT / "docs/streaming.md"
GREEDY = common.SamplingParams(temperature=0.0, ignore_eos=True, max_new_tokens=4)
NewCaller = Callable[[], Caller]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_causal.save(tmp_path_factory.mktemp("causal") / "tiny")


@pytest.fixture(scope="module")
def greedy(folder: Path) -> Any:
    return tiny_causal.continued(folder, ends=False)


@asynccontextmanager
async def worker(folder: Path, **options: Any) -> AsyncIterator[tuple[str, NewCaller]]:
    """A worker that serves the model, and callers of it."""
    settings = {"model": str(folder), "context_limit": 64, "slots": 2, **options}
    async with running_worker(load_engine, **settings) as running, channel_to(running.address) as channel:
        yield running.address, lambda: Caller(channel)


async def stream(new_caller: NewCaller, **config: Any) -> Caller:
    caller = await new_caller().ready(**{"mode": pb.SESSION_MODE_TOKENS, "sampling": GREEDY, **config})
    return caller


def ids(*tokens: int) -> pb.StreamInput:
    return pb.StreamInput(token_ids=pb.TokenIds(ids=tokens))


SILENT_TEMPLATE = (
    "{% if messages[0].content == 'nothing' %}{% elif messages[0].content == 'boom' %}{{ 1 // 0 }}{% else %}"
    + tiny_causal.TEMPLATE
    + "{% endif %}"
)


def turn(text: str) -> pb.TurnInput:
    message = pb.ChatMessage(role=pb.ROLE_USER, content=[pb.Content(text=text)])
    return pb.TurnInput(messages=[message])


async def test_broken_template_harms_its_caller_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny_causal, "TEMPLATE", SILENT_TEMPLATE)
    target = tiny_causal.save(tmp_path / "tiny")
    async with worker(target, context_limit=128, slots=4) as (address, new_caller):
        config = {"mode": pb.SESSION_MODE_CHAT, "sampling": GREEDY}
        first = await stream(new_caller, **config)
        alone = (await first.unit(1, turn("Hello"))).token_ids
        neighbour, empty, broken = [await stream(new_caller, **config) for _ in range(3)]
        await empty.prefill(1, turn("nothing"))
        answers = await broken.unit(1, turn("boom"))
        assert answers.done.error.reason == Reason.INFERENCE_FAILED
        ending = await empty.end()
        assert (ending.code, ending.reason) == (grpc.StatusCode.INTERNAL, Reason.INFERENCE_FAILED)
        assert (await neighbour.unit(1, turn("Hello"))).token_ids == alone
        for session in (first, neighbour, broken):
            await session.half_close(*Stream)
        await until_free(address, 4)


async def test_the_blocks_of_the_example(folder: Path, greedy: Any) -> None:
    """[A1 B1 C1] gives D1; [A2 B2] gives C2 D2 E2; [A3 B3] gives C3 D3."""
    chunks = [((5, 17, 42), 1), ((71, 99), 3), ((123, 200), 2)]
    async with worker(folder) as (address, new_caller):
        info = await get_info(address)
        caller = await stream(new_caller)
        for unit, (chunk, count) in enumerate(chunks, 1):
            await caller.send_unit(unit, ids(*chunk), sampling=common.SamplingParams(max_new_tokens=count))
        said = [await caller.answers(unit) for unit in (1, 2, 3)]
    assert (info.model, info.context_limit) == ("tiny", 64)
    assert set(info.modes) == {pb.SESSION_MODE_CHAT, pb.SESSION_MODE_TOKENS}
    first, second, third = said
    assert first.token_ids == greedy([5, 17, 42], 1)
    c2, d2, e2 = greedy([5, 17, 42, 71, 99], 3)
    assert second.token_ids == [c2, d2, e2]
    assert third.token_ids == greedy([5, 17, 42, 71, 99, c2, d2, 123, 200], 2)
    assert [a.done.usage.cached_tokens for a in said] == [0, 3, 7], "nothing is computed twice"
    assert [a.finalize.discarded_tokens for a in said] == [1, 1, 1]
    assert {a.done.finish_reason for a in said} == {pb.FINISH_REASON_LENGTH}


async def test_the_example_of_the_documentation_runs(folder: Path) -> None:
    async with worker(folder) as (address, _):
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(EXAMPLE), address, "think", "answer", stdout=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(PATIENCE_S):
            output, _ = await process.communicate()
    assert process.returncode == 0
    lines = output.decode().splitlines()
    assert [unit for unit in "12" if any(line.startswith(f"{unit}: ended by") for line in lines)] == [
        "1",
        "2",
    ]
    assert any(re.fullmatch(r"2: \d+ tokens of context, 1 discarded", line) for line in lines)


def test_the_documentation_shows_the_example() -> None:
    code = EXAMPLE.read_text().partition('"""\n\n')[2]
    assert f"```python\n{code}```" in DOCUMENTATION.read_text()
