"""Listen on addresses and Unix sockets, and refuse those that cannot be or are not safe."""

import socket
from pathlib import Path

import pytest

from antiphon.grpc import get_info
from inference_service.app import EXIT_CONFIGURATION, EXIT_FAULT, serve
from inference_service.errors import ConfigurationError
from inference_service.models.errors import CheckpointError
from inference_service.options import WorkerOptions
from inference_service.rpc.address import Address
from tests.inference_service.support.caller import Caller, channel_to, soon
from tests.support.scripted_engine import ScriptedEngine, running_worker

KEY = b"a key of 16 byte"


@pytest.mark.parametrize(
    ("text", "is_local"),
    [
        ("127.0.0.1:50051", True),
        ("127.9.9.9:0", True),
        ("localhost:1", True),
        ("[::1]:50051", True),
        ("unix:/run/w.sock", True),
        ("0.0.0.0:50051", False),
        ("[::]:50051", False),
        ("10.0.0.7:50051", False),
        ("worker.example:50051", False),
    ],
)
def test_address_locality_is_detected(text: str, is_local: bool) -> None:
    address = Address.parse(text)
    assert (address.is_local, str(address)) == (is_local, text)


@pytest.mark.parametrize(
    "text", ["", "50051", ":50051", "host:", "host:port", "host:65536", "host:-1", "host:\u0663", "unix:"]
)
def test_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        Address.parse(text)


async def test_with_both_a_worker_serves_beyond_loopback() -> None:
    async with running_worker(
        ScriptedEngine(), listen="0.0.0.0:0", worker_key=KEY, insecure_grpc=True
    ) as worker:
        async with channel_to(worker.address) as channel:
            await soon(channel.channel_ready())


async def test_two_starts_of_a_worker_have_two_ids() -> None:
    ids = set()
    for _ in range(2):
        async with running_worker(ScriptedEngine(), worker_id="w-1") as worker:
            ids.add((await get_info(worker.address)).worker_id)
    assert len(ids) == 2
    assert all(name.startswith("w-1-") for name in ids)


async def test_a_worker_takes_over_a_dead_socket_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "worker.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    assert path.exists()
    async with running_worker(ScriptedEngine(), listen=f"unix:{path}") as worker:
        assert worker.address == f"unix:{path}"
        async with channel_to(worker.address) as channel:
            await (await Caller(channel).ready()).unit(1)
    assert not path.exists()


async def test_socket_of_a_living_worker_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with running_worker(ScriptedEngine(slots=3), listen=f"unix:{tmp_path}/w") as worker:
        code = await serve(WorkerOptions(listen=worker.address), factory=ScriptedEngine().start)
        assert code == EXIT_CONFIGURATION
        assert "another process" in capsys.readouterr().err
        assert (await get_info(worker.address)).slots == 3


@pytest.mark.parametrize("path", ["missing/worker.sock", "x" * 120, "file"])
async def test_path_of_no_socket_is_said(
    tmp_path: Path, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("not a socket")
    options = WorkerOptions(listen=f"unix:{tmp_path / path}")
    assert await serve(options, factory=ScriptedEngine().start) == EXIT_CONFIGURATION
    assert str(tmp_path / path) in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "not a socket"


async def test_a_port_in_use_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    async with running_worker(ScriptedEngine()) as worker:
        code = await serve(WorkerOptions(listen=worker.address), factory=ScriptedEngine().start)
    assert code == EXIT_CONFIGURATION
    assert worker.address in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (CheckpointError("There is no model 'x'."), EXIT_CONFIGURATION, "There is no model 'x'.\n"),
        (MemoryError(), EXIT_FAULT, None),
    ],
)
async def test_failure_to_load_ends_with_its_code(
    error: Exception, code: int, told: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(*arguments: object) -> ScriptedEngine:
        raise error

    assert await serve(WorkerOptions(listen="127.0.0.1:0"), factory=load) == code
    assert told in (None, capsys.readouterr().err)


async def test_the_window_of_the_options_is_the_default_of_sessions() -> None:
    engine = ScriptedEngine()
    async with running_worker(engine, window_high=500) as worker, channel_to(worker.address) as channel:
        _caller = await Caller(channel).ready()
        window = engine.session.duplex.window
    assert (window.high_tokens, window.low_tokens) == (500, 375)
