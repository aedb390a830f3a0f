"""Prometheus metrics of adapter and worker after sessions with the shipped checkpoint."""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from antiphon_service.semconv import JOURNAL_GAPS, JOURNALS_BEHIND, SERVICE_ADAPTER, SERVICE_WORKER
from tests.cli.support.process import run_cli
from tests.e2e.conftest import FOLDER, antiphon
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer
from tests.ws_adapter.support.process import ADAPTER_OPTIONS


class Scrape:
    """The metrics of each job."""

    def __init__(self, jobs: dict[str, list[Metric]]) -> None:
        self.jobs = jobs
        self._values: dict[tuple[str, str], set[str]] = {}
        self._series: set[str] = set()
        for sample in (sample for family in self.families() for sample in family.samples):
            self._series.add(sample.name)
            for label, value in sample.labels.items():
                self._values.setdefault((sample.name, label), set()).add(value)

    def series(self) -> set[str]:
        """Names of all series."""
        return self._series

    def families(self) -> list[Metric]:
        """Return the metric families of all jobs."""
        return [family for families in self.jobs.values() for family in families]

    def values(self, series: str, label: str) -> set[str]:
        """Values that a label has in a series."""
        return self._values.get((series, label), set())


def scrape(port: int) -> list[Metric]:
    """Return the metrics of an administration port."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as response:
        return list(text_string_to_metric_families(response.read().decode()))


def talk(address: str) -> None:
    """Run a spoken conversation, a typed one, a transcription, and failing ones."""
    question = FOLDER / "joke.wav"
    assert run_cli("talk", question, "--url", address, timeout_s=PATIENCE_S).code == 0
    assert run_cli("chat", "what is your name", "--url", address).code == 0
    assert run_cli("transcribe", question, "--url", address).code == 0
    url = f"{address.replace('http', 'ws')}/v1/realtime?mode=audio"
    with connect(url) as first, connect(url) as second, connect(url) as third:
        first.send('{"type": "no.such.event"}')
        until(first, "error")
        until(second, "session.queue_done")
        until(third, "session.queued")  # there are two slots
        first.close()
        until(third, "session.queue_done")
    with pytest.raises(InvalidStatus), connect(url, origin=Origin("https://not.allowed")):
        pass


def until(socket: ClientConnection, kind: str) -> None:
    """Reads up to an event of that type."""
    while json.loads(socket.recv(timeout=PATIENCE_S))["type"] != kind:
        pass


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scrape]:
    admin = ("--admin-port", "0")
    with ExitStack() as stack:
        worker = stack.enter_context(antiphon("worker", "--listen", "127.0.0.1:0", "--slots", "2", *admin))
        origins = ("--allowed-origins", "https://example.org")
        command = ("adapter", "--port", "0", "--worker", worker.address, *origins, *ADAPTER_OPTIONS, *admin)
        adapter = stack.enter_context(antiphon(*command))
        talk(adapter.address)
        jobs = {SERVICE_ADAPTER: adapter, SERVICE_WORKER: worker}
        told = {job: scrape(server.admin_port) for job, server in jobs.items()}
        told[SERVICE_ADAPTER] += told_by_shared_journals(tmp_path_factory.mktemp("shared"))
        yield Scrape(told)


def told_by_shared_journals(folder: Path) -> list[Metric]:
    """Return the metrics that only an adapter with journals in Redis has."""
    (folder / "key").write_text("0123456789abcdef0123456789abcdef\n")
    redis = RedisServer(folder)
    redis.start()
    with ExitStack() as stack:
        stack.callback(redis.stop)
        command = ("adapter", "--port", "0", "--dispatcher", redis.url, "--journal", "redis")
        files = ("--client-secret-key-file", str(folder / "key"), "--peer-listen", "127.0.0.1:0")
        options = (*files, *ADAPTER_OPTIONS, "--resume-window-s", "30", "--admin-port", "0")
        adapter = stack.enter_context(antiphon(*command, *options))
        names = {JOURNALS_BEHIND.name, JOURNAL_GAPS.name}
        return [it for it in scrape(adapter.admin_port) if any(it.name in name for name in names)]
