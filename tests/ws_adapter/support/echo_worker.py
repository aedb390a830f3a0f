"""A process that echoes every message of a call: `python -m tests.ws_adapter.support.echo_worker`.

Prints its address; it can be frozen, and ends with its standard input.
"""

import asyncio
import sys

from tests.ws_adapter.support.calls import echo, serving


async def main() -> None:
    """Serve until standard input is closed."""
    # Clients of tests ask more often than those of the product whether it is there.
    eager = ("grpc.http2.min_ping_interval_without_data_ms", 100)
    options = (eager, ("grpc.http2.max_ping_strikes", 0))
    async with serving(echo, "127.0.0.1:0", None, *options) as (_, port):
        print(f"127.0.0.1:{port}", flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
