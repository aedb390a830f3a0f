"""A worker and an adapter as containers of the shipped images, which share a socket."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.deploy import containers
from tests.deploy.containers import Container
from tests.deploy.images import Images, name_of
from tests.support.redis_server import free_port

USER = 10001


@dataclass
class Pair:
    """The two containers; `start_s` is how long each took until it was ready, in seconds."""

    worker: Container
    adapter: Container
    ports: dict[str, int]
    start_s: dict[str, float] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Return the adapter's address for clients."""
        return f"ws://127.0.0.1:{self.ports['clients']}"


@contextmanager
def running(tool: str, images: Images, folder: Path) -> Iterator[Pair]:
    """Start both by `tool`, with their volumes in `folder`; end and remove them at the end."""
    ports = {name: free_port() for name in ("clients", "adapter", "worker")}
    for name in ("socket", "adapter", "worker", "cache"):
        (folder / name).mkdir()
        os.chown(folder / name, USER, USER) if os.geteuid() == 0 else (folder / name).chmod(0o777)
    shared = {"/run/antiphon": folder / "socket"}
    start_s: dict[str, float] = {}
    with ExitStack() as stack:

        def start(name: str, image: str, settings: dict[str, str], places: Mapping[str, Path]) -> Container:
            log = stack.enter_context((folder / f"{name}.log").open("w+"))
            began = time.monotonic()
            container = containers.run(
                tool,
                f"antiphon-test-{name}-{ports['clients']}",
                name_of(tool, image),
                log,
                settings=settings,
                volumes=places,
                variables=images.variables,
            )
            stack.callback(container.remove)
            container.until_said(f"{name} ready on")
            start_s[name] = time.monotonic() - began
            return container

        worker = {
            "ANTIPHON_WORKER__LISTEN": "unix:/run/antiphon/worker.sock",
            "ANTIPHON_WORKER__SLOTS": "2",
            "ANTIPHON_WORKER__ADMIN_PORT": str(ports["worker"]),
        }
        adapter = {
            "ANTIPHON_ADAPTER__WORKER": "unix:/run/antiphon/worker.sock",
            "ANTIPHON_ADAPTER__HOST": "127.0.0.1",
            "ANTIPHON_ADAPTER__PORT": str(ports["clients"]),
            "ANTIPHON_ADAPTER__ADMIN_PORT": str(ports["adapter"]),
            "ANTIPHON_ADAPTER__MAX_LOOP_LAG_MS": "0",  # other tests share the cores
            "ANTIPHON_ADAPTER__MAX_CPU": "0",
        }
        volumes = {"/tmp": folder / "worker", "/opt/antiphon/cache": folder / "cache", **shared}
        yield Pair(
            start("worker", "worker-cpu", worker, volumes),
            start("adapter", "adapter", adapter, {"/tmp": folder / "adapter", **shared}),
            ports,
            start_s,
        )
