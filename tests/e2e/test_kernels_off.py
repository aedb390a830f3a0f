"""`--kernels off`: the shipped model listens, speaks and chats by torch and NumPy alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Recording, Server, running_adapter, running_worker
from tests.e2e.support.conversation import answer
from tests.e2e.test_chat import WRITTEN, answers, user
from tests.support.long import long


@pytest.fixture(scope="module")
def plain() -> Iterator[Server]:
    with running_worker("--kernels", "off", slots=2) as server:
        yield server


def loaded(pid: int) -> list[str]:
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return sorted({line.split()[-1] for line in lines if "inference_service/kernels/" in line})


@long
async def test_worker_without_kernels_chats_and_speaks(plain: Server, recordings: list[Recording]) -> None:
    told = await answers(plain.address, [[user(question)] for question in WRITTEN])
    assert [it.text for it in told] == list(WRITTEN.values())
    with running_adapter(plain.address) as server:
        said = await answer(server.address.replace("http", "ws"), recordings[0])
    assert (said.text.strip(), len(said.samples) > 0) == (recordings[0].reply, True)
    assert loaded(plain.process.pid) == []
    assert '"event": "loading the model", "model": "antiphon-mini", "kernels": "off"' in plain.said


async def test_worker_with_kernels_loads_them() -> None:
    """Else the test above would prove nothing."""
    with running_worker(slots=1) as server:
        await answers(server.address, [[user("Hello!")]])
        assert [Path(name).name.partition(".")[0] for name in loaded(server.process.pid)]
