"""A worker process with vLLM behind it: what it serves, how it drains, and who ends whom."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from antiphon.contract import Reason
from antiphon.grpc import get_info
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.session.units import Stream
from tests.inference_service.engine_vllm.support import tiny_realtime
from tests.inference_service.engine_vllm.support.dictation import (
    SOUND,
    in_openais_events,
    speech,
    transcripts,
    written,
)
from tests.inference_service.engine_vllm.support.engines import HAS_VLLM, LIMIT, MISSING
from tests.inference_service.engine_vllm.test_served import ids, stream
from tests.inference_service.support.caller import Caller, channel_to, soon, until_free
from tests.support.long import long
from tests.ws_adapter.support.stage import running_adapter

pytestmark = [long, pytest.mark.skipif(not HAS_VLLM, reason=MISSING), pytest.mark.timeout(1500)]

START_S = 900.0
"""vLLM starts in a minute, and in many where other tests run beside it."""
END_S = 120.0
COMMAND = (sys.executable, "-m", "antiphon_command", "worker", "--engine", "vllm", "--listen", "127.0.0.1:0")


def children(process: int) -> list[int]:
    """Return the ids of a process's children and theirs, the nearest first."""
    told = [file.read_text().split() for file in Path(f"/proc/{process}/task").glob("*/children")]
    mine = sorted({int(it) for of_a_task in told for it in of_a_task})
    return mine + [far for near in mine for far in children(near)]


def is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@dataclass
class Running:
    """A worker that serves, in a process group of its own."""

    process: asyncio.subprocess.Process
    address: str
    below: list[int]
    """The processes of vLLM and its helpers."""

    @property
    def core(self) -> int:
        (found,) = [it for it in self.below if b"EngineCore" in Path(f"/proc/{it}/cmdline").read_bytes()]
        return found

    async def exit_code(self) -> int:
        async with asyncio.timeout(END_S):
            return await self.process.wait()

    async def nothing_is_left(self) -> None:
        """Wait until all that it has started has ended."""
        async with asyncio.timeout(END_S):
            while any(map(is_alive, self.below)):  # noqa: ASYNC110 (nobody announces it)
                await asyncio.sleep(0.05)


@asynccontextmanager
async def worker(folder: Path, log: Path, *arguments: str) -> AsyncIterator[Running]:
    options = ("--model", str(folder), "--dtype", "float32", "--compile", "off", "--slots", "3")
    limit = ("--max-model-len", str(LIMIT))
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *(*COMMAND, *options, *limit, *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    below: list[int] = []
    try:
        assert process.stdout is not None
        async with asyncio.timeout(START_S):
            line = (await process.stdout.readline()).decode()
        assert line.startswith("worker ready on "), f"it did not start, see {log}"
        below = children(process.pid)
        yield Running(process, line.removeprefix("worker ready on ").strip(), below)
    finally:
        if process.returncode is None:
            below += children(process.pid)
        for left in (*([process.pid] if process.returncode is None else []), *below):
            if is_alive(left):
                os.kill(left, signal.SIGKILL)
        await process.wait()


async def test_worker_serves_and_drains_at_ctrl_c(folder: Path, tmp_path: Path, greedy: Any) -> None:
    async with (
        worker(folder, tmp_path / "log", "--drain-timeout-s", "30") as running,
        channel_to(running.address) as channel,
    ):
        info = await get_info(running.address)
        assert (info.engine.name, info.engine.tensor_parallel_size) == ("vllm", 1)
        assert info.engine.version
        assert info.context_limit == LIMIT
        caller = await stream(channel)
        first = await caller.unit(1, ids(5, 17, 42))
        assert first.token_ids == greedy([5, 17, 42], 4)
        long_one = await caller.unit(2, ids(*[7] * LIMIT))
        assert long_one.prefill.error.reason == Reason.INPUT_TOO_LONG
        refused = await caller.unit(3, ids(1), sampling=common.SamplingParams(length_penalty=2.0))
        assert refused.done.error.reason == Reason.PARAMS_INVALID
        chat = await Caller(channel).open()
        sampling = common.SamplingParams(temperature=0.0, max_new_tokens=3, length_penalty=1.5)
        ready = await chat.configure(mode=pb.SESSION_MODE_CHAT, sampling=sampling)
        assert [*ready.ignored_fields] == ["sampling.length_penalty"]
        message = pb.ChatMessage(role=pb.ROLE_USER, content=[pb.Content(text="Hello")])
        assert (await chat.unit(1, pb.TurnInput(messages=[message]))).done.end == pb.UNIT_END_TURN
        duplex = await Caller(channel).open()
        await duplex.send_config(mode=pb.SESSION_MODE_AUDIO)
        assert (await duplex.end()).reason == Reason.MODE_UNSUPPORTED
        await chat.half_close(*Stream)
        assert (await chat.end()).code == grpc.StatusCode.OK
        os.killpg(running.process.pid, signal.SIGINT)
        async with asyncio.timeout(END_S):
            while (await get_info(running.address)).state != pb.WORKER_STATE_DRAINING:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert (await caller.read(Stream.GENERATE)).HasField("go_away")
        x = first.token_ids[:-1]
        late = await caller.unit(4, ids(9))
        assert late.token_ids == greedy([5, 17, 42, *x, 9], 4)
        await caller.half_close(*Stream)
        assert await running.exit_code() == 0
        await running.nothing_is_left()


async def test_engine_process_death_fails_sessions_and_ends_worker(folder: Path, tmp_path: Path) -> None:
    async with worker(folder, tmp_path / "log") as running, channel_to(running.address) as channel:
        idle, busy = await stream(channel), await stream(channel)
        await busy.unit(1, ids(5, 17))
        os.kill(running.core, signal.SIGKILL)
        for caller in (idle, busy):
            assert (await caller.end()).reason == Reason.ENGINE_FATAL
        assert await running.exit_code() == 3
        await running.nothing_is_left()


async def test_killed_worker_leaves_no_engine_behind(folder: Path, tmp_path: Path) -> None:
    async with worker(folder, tmp_path / "log") as running:
        assert await soon(get_info(running.address))
        running.process.kill()
        await running.exit_code()
        await running.nothing_is_left()


async def test_worker_transcribes_and_a_killed_caller_frees_its_slot(tmp_path: Path) -> None:
    folder = tiny_realtime.save(tmp_path / "hearing")
    expected = written(folder, SOUND)
    async with worker(folder, tmp_path / "log") as running:
        info = await get_info(running.address)
        assert [*info.modes] == [pb.SESSION_MODE_TRANSCRIBE]
        async with channel_to(running.address) as channel:
            caller = await Caller(channel).ready(mode=pb.SESSION_MODE_TRANSCRIBE)
            await caller.send_unit(1, speech(SOUND))
            await caller.read(Stream.GENERATE)
            for call in caller.calls.values():
                call.cancel()
        await until_free(running.address, 3)
        async with running_adapter(running.address) as stage:
            assert await transcripts(stage.address, [SOUND, SOUND]) == [expected, expected]
            assert await in_openais_events(stage.address, folder.name, SOUND)
