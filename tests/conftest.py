"""Fixtures that more than one package's tests use."""

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator, Generator, Iterator
from fnmatch import fnmatch, fnmatchcase
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.forks import process as forks
from tests.support.observed import observed
from tests.support.passing import Passing
from tests.support.redis_server import INSTALLED, MISSING, RedisServer
from tests.support.redis_users import RedisUsers

SLOW = tuple(
    f"{folder}/{name}" if "*" in name else f"{folder}/test_{name}.py"
    for folder, names in {
        "benchmarks": "full_size neighbours tracing walk",
        "cli": (
            "chat check_config config_reload convert_vocoder failures help serve serve_several talk "
            "talk_aloud transcribe"
        ),
        "cluster": "*",
        "conformance/chat": "*",
        "conformance/duplex": "*",
        "conformance/realtime": "clients clocks endings interrupting queue shipped",
        "conformance/realtime_ga": "*",
        "conformance/transcription": "*",
        "deploy": "names redis_users secured_cluster",
        "e2e": "*",
        "failures": "clock faults",
        "inference_service/engine/batch": "memory speech",
        "inference_service/device": "fake_device forwards launches replays",
        "inference_service/engine/golden": "*",
        "inference_service/session/kinds": "transcription utterances vision",
        "inference_service/engine": "test_*.py",
        "inference_service/engine_vllm": "contract faults media other_models processes served",
        "inference_service/families": "*",
        "inference_service/models/minicpmo": "audio hub mel",
        "inference_service/models/token2wav": "*",
        "inference_service/modes": "*",
        "inference_service/observability": "metrics tracing",
        "inference_service/process": "*",
        "inference_service/registration": "*",
        "inference_service/rpc": "attach error_rows garbage unit_cycle violations hostile_callers server",
        "inference_service/video": "decoding refusals",
        "page": "conversation failures services",
        "storm": "*",
        "training": "test_*.py",
        "ws_adapter/direct": "*",
        "ws_adapter/dispatch": "contract redis",
        "ws_adapter/observability": "metrics",
        "ws_adapter/protocol/realtime_ga": "truncation",
        "ws_adapter/protocol/wire": "schema_truth",
        "ws_adapter/recording": "sessions",
        "ws_adapter/server": "floods",
        "ws_adapter/session": "endings untrusted_work",
    }.items()
    for name in names.split()
)
"""Files of tests that `make check` leaves to `make test`: they start processes or compute for seconds."""
TESTS = Path(__file__).parent

# The time of an example depends on the machine, so examples have no deadline. `make test` tries the same
# examples each time, `make long` four times as many others.
settings.register_profile("searching", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("searching"), derandomize=True, max_examples=25)
settings.load_profile("same")

# Threads of a small model wait for each other more than they compute; those of child processes too.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow tests, and mark parameters of a matrix that are not in its sample as `long`."""
    matrices: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for item in items:
        if _is_slow(item.path):
            item.add_marker("slow")
        sample = item.get_closest_marker("sample")
        if sample is not None:
            matrices.setdefault((item.nodeid.partition("[")[0], sample.args), []).append(_id(item))
            if not any(fnmatchcase(_id(item), pattern) for pattern in sample.args):
                item.add_marker("long")
    for (name, patterns), ids in matrices.items():
        unknown = [pattern for pattern in patterns if not any(fnmatchcase(it, pattern) for it in ids)]
        if unknown and len(ids) > 1:  # one alone was named on the command line
            raise pytest.UsageError(f"{name} has no parameter {', '.join(unknown)}: it has {', '.join(ids)}")


def _id(item: pytest.Item) -> str:
    assert isinstance(item, pytest.Function), item
    return item.callspec.id


@cache
def _is_slow(path: Path) -> bool:
    file = path.relative_to(TESTS).as_posix()
    return any(fnmatch(file, pattern) for pattern in SLOW)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude imported objects from garbage collection, during collection of tests and after it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)
        gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    """Start one fork server for all test processes, and restore the default handler of SIGINT.

    A script starts its background jobs with SIGINT ignored, and commands in tests would inherit that.
    """
    if config.getoption("numprocesses", None):
        forks.share()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
async def no_leaked_tasks() -> AsyncIterator[None]:
    """Fail the test if one of its tasks still runs shortly after its end."""
    before = asyncio.all_tasks()
    yield
    for turn in range(100):
        leaked = asyncio.all_tasks() - before - {asyncio.current_task()}
        if not leaked:
            return
        if turn % 20 == 19:  # a collection may take a second
            gc.collect()
        await asyncio.sleep(0.01)
    pytest.fail(f"tasks are left over: {leaked}")


@pytest.fixture
def proper_events() -> Iterator[None]:
    """Fail the test if a WebSocket client of this process sent or received an event of no dialect."""
    with observed():
        yield


@pytest.fixture(scope="session")
def _shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    if INSTALLED is None:
        pytest.skip(MISSING)
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
def redis_server(_shared_redis: RedisServer) -> RedisServer:
    """A running, empty redis-server, which the test may stop, pause and start as it likes."""
    if _shared_redis.is_running:
        _shared_redis.resume()
        _shared_redis.empty()
    else:
        _shared_redis.stop(keep_data=False)
        _shared_redis.start()
    return _shared_redis


@pytest.fixture(scope="session")
def _shared_redis_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisUsers]:
    if INSTALLED is None:
        pytest.skip(MISSING)
    users = RedisUsers.on(tmp_path_factory.mktemp("redis-users"))
    yield users
    users.server.stop()


@pytest.fixture
def redis_users(_shared_redis_users: RedisUsers) -> Iterator[RedisUsers]:
    """A running, empty redis-server with the shipped users. Fails the test if Redis denied them anything."""
    _shared_redis_users.server.empty()
    _shared_redis_users.server.command("ACL", "LOG", "RESET")
    yield _shared_redis_users
    assert _shared_redis_users.server.command("ACL", "LOG") == b"*0"


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Passing:
    """Return a function that advances the clock of the process."""
    return Passing(monkeypatch)
