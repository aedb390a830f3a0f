"""Records a session of an adapter: `python -m tests.skew.record CHECKOUT FILE`.

The adapter is that of another checkout, whose commit is the release before; the worker, which plays a script,
and the client are ours.
"""

import asyncio
import os
import sys
from pathlib import Path
from unittest.mock import patch

import antiphon
from inference_service.rpc.servicer import InferenceServicer
from tests.cli.test_serve import one_turn
from tests.skew.contract import Contract, Narrowed, Request, write_session
from tests.support.scripted_engine import EVERYTHING, TALK, ScriptedEngine, running_worker


async def record(checkout: Path, file: Path) -> None:
    today = InferenceServicer.methods
    requests: list[Request] = []
    with patch.object(
        InferenceServicer, "methods", lambda servicer: Narrowed(Contract(), today(servicer), requests)
    ):
        async with running_worker(ScriptedEngine(*TALK, repeat=True, info=EVERYTHING)) as worker:
            paths = os.pathsep.join(map(str, (checkout, checkout / "clients/python")))
            adapter = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "antiphon_command", "adapter"),
                *("--port", "0", "--worker", worker.address),
                stdout=asyncio.subprocess.PIPE,
                cwd=checkout,
                env=os.environ | {"PYTHONPATH": paths},
            )
            try:
                assert adapter.stdout is not None
                address = (await adapter.stdout.readline()).decode().split()[-1]
                print(antiphon.__version__, await one_turn(address))
            finally:
                adapter.terminate()
                await adapter.wait()
    write_session([request for request in requests if request.stream != "GetInfo"], file)


if __name__ == "__main__":
    asyncio.run(record(Path(sys.argv[1]).resolve(), Path(sys.argv[2])))
