"""The client program that vLLM's announcement of its Realtime API prints, as a process of its own."""

import asyncio
import os
import sys
from pathlib import Path

from tests.support.patience import PATIENCE_S

FOLDER = Path(__file__).parents[2] / "data/vllm_realtime"
PRINTED_URL = "ws://localhost:8000/v1/realtime"


async def run_program(folder: Path, url: str, model: str) -> str:
    """Return the program's output for `audio.wav` in `folder`, with the server at `url`.

    Only its address changes, and the name of the model, which the text leaves to its reader.
    """
    text = (FOLDER / "client.txt").read_text()
    assert text.count(PRINTED_URL) == 1
    program = folder / "client.py"
    program.write_text(f'model = "{model}"\n{text.replace(PRINTED_URL, url)}')
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(program),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(FOLDER)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            said, complained = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, complained.decode()
    return said.decode()
