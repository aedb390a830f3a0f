"""CPU of the adapter per unit, by who speaks gRPC with its worker and over what."""

import asyncio
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import trustme

from benchmarks.adapter.cost import UNBOUNDED, Chain, Window, sockets
from benchmarks.adapter.report import Report
from benchmarks.load.processes import adapter, running

_LOOPBACK: Final = "127.0.0.1:0"


def _issue(folder: Path) -> None:
    """A certificate of loopback, and who signed it."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    issued.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    issued.private_key_pem.write_to_path(folder / "key.pem")


async def measure(is_short: bool) -> Report:
    """The table; the cheapest way is the measure of the others."""
    rounds, seconds = (3, 2.0) if is_short else (5, 4.0)
    found: dict[str, list[float]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        await asyncio.to_thread(_issue, folder)
        worker = "benchmarks.load.worker"
        ways = {
            "a Unix socket": stack.enter_context(running(worker)),
            "TCP": stack.enter_context(running(worker, "--listen", _LOOPBACK)),
            "TLS": stack.enter_context(running(worker, "--listen", _LOOPBACK, "--tls", str(folder))),
        }
        windows: dict[str, Window] = {}
        for transport in ("native", "grpcio"):
            for over, process in ways.items():
                options = ("--worker-ca", str(folder / "ca.pem")) if over == "TLS" else ()
                way = ("--worker-transport", transport, *options)
                under_test = stack.enter_context(adapter(process.address, *UNBOUNDED, *way))
                chain = Chain()
                await chain.connect(under_test.port, has_sessions=True)
                windows[f"{transport}, {over}"] = sockets(under_test, chain)
        for _ in range(rounds):
            for name, window in windows.items():
                found.setdefault(name, []).append((await window(seconds))[0])
    cost = {name: statistics.median(values) for name, values in found.items()}
    first = next(iter(cost.values()))
    rows = [
        (name, us, f"{min(found[name]):.0f} to {max(found[name]):.0f}", us / first)
        for name, us in cost.items()
    ]
    columns = ("way to the worker", "CPU-us per unit", "spread", "of the first")
    return Report("transports", "CPU of the adapter per unit by its way to the worker", columns, rows)
