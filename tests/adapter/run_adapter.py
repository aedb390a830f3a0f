"""An adapter process, for tests that need signals.

python -m tests.adapter.run_adapter WORKER [DRAIN_TIMEOUT_S]
"""

import asyncio
import sys

from ws_adapter.app import serve
from ws_adapter.options import AdapterOptions


def main() -> int:
    """Runs until a signal; returns the adapter's exit code."""
    worker, *drain = sys.argv[1:]
    options = AdapterOptions(
        workers=(worker,),
        port=0,
        drain_timeout_s=float(drain[0]) if drain else AdapterOptions.drain_timeout_s,
    )
    return asyncio.run(serve(options))


if __name__ == "__main__":
    sys.exit(main())
