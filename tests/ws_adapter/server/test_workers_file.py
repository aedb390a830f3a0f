"""A file of workers: who is in it serves, and it is read again."""

from pathlib import Path

import pytest

from tests.support.scripted_engine import ScriptedEngine, listen, running_worker
from tests.ws_adapter.support.conversation import append
from tests.ws_adapter.support.stage import running_adapter
from ws_adapter.options import AdapterOptions
from ws_adapter.process.errors import ConfigurationError
from ws_adapter.worker.targets import read_targets


async def test_worker_leaves_and_another_joins_without_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "workers"
    async with (
        running_worker(ScriptedEngine(listen(), slots=1, repeat=True), slots=1) as old,
        running_worker(ScriptedEngine(listen(), slots=1, repeat=True), slots=1) as new,
    ):
        file.write_text(f"{old.address}\n")
        async with running_adapter(workers_file=file) as stage, stage.client() as talker:
            await talker.begin()
            async with stage.client() as waiting:
                await waiting.expect("session.queued")

                file.write_text(f"# the next one\n{new.address}\n")
                stage.adapter.reload()

                await waiting.expect_until("session.queue_done")
                await talker.send(append())
                await talker.expect("listen")


async def test_file_that_cannot_be_used_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "workers"
    async with running_worker(ScriptedEngine(listen())) as worker:
        file.write_text(worker.address)
        async with running_adapter(workers_file=file) as stage:
            file.write_text("nonsense")
            stage.adapter.reload()
            async with stage.client() as client:
                await client.begin()
    assert "the file of workers could not be read again, nothing changes" in caplog.text


def test_file_without_workers_is_refused_and_one_beside_names_of_workers(tmp_path: Path) -> None:
    file = tmp_path / "workers"
    with pytest.raises(ConfigurationError, match="Cannot read the workers of"):
        read_targets(file)
    unreachable = ("a b\n", "Cannot reach a worker at 'a b'")
    for text, told in (("", "names no worker"), ("# nobody\n\n", "names no worker"), unreachable):
        file.write_text(text)
        with pytest.raises(ConfigurationError, match=told):
            read_targets(file)
    with pytest.raises(ConfigurationError, match="Workers are named twice"):
        AdapterOptions(workers=("127.0.0.1:1",), workers_file=file)
