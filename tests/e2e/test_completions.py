"""OpenAI's SDK asks the shipped model: text, a picture, a recording, aloud."""

import base64
import json
import re
import subprocess
import sys
import urllib.request
import wave
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from tests.e2e.conftest import FOLDER
from tests.e2e.test_examples import EXAMPLES
from tests.support.drawing import jpeg
from tests.support.patience import PATIENCE_S, START_S

MODEL = "antiphon-mini"


def client_of(adapter: str) -> AsyncOpenAI:
    return AsyncOpenAI(api_key="none", base_url=f"{adapter}/v1", max_retries=0, timeout=PATIENCE_S)


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def test_written_question_is_answered_whole_and_in_pieces(adapter: str) -> None:
    asked: Any = {
        "model": MODEL,
        "temperature": 0,
        "messages": [{"role": "user", "content": "What is three plus four?"}],
    }
    async with client_of(adapter) as client:
        whole = await client.chat.completions.create(**asked)
        pieces = [
            chunk.choices[0].delta.content or ""
            async for chunk in await client.chat.completions.create(**asked, stream=True)
        ]
    assert whole.choices[0].message.content == "".join(pieces) == "three plus four is seven"
    assert len(pieces) > 2


async def test_stop_string_ends_the_answer_and_is_left_out(adapter: str) -> None:
    async with client_of(adapter) as client:
        answer = await client.chat.completions.create(
            model=MODEL,
            temperature=0,
            stop="four",
            messages=[{"role": "user", "content": "What is three plus four?"}],
        )
    content = answer.choices[0].message.content
    assert content is not None
    assert content.strip() == "three plus"
    assert answer.choices[0].finish_reason == "stop"


def test_body_of_the_curl_example_is_answered(adapter: str) -> None:
    page = (EXAMPLES.parents[2] / "docs" / "completions.md").read_text()
    found = re.search(r"curl http://localhost:8006(\S+) -H '([^']+)' -d '([^']+)'", page)
    assert found is not None
    path, header, body = found.groups()
    name, _, value = header.partition(": ")
    request = urllib.request.Request(adapter + path, body.encode(), {name: value})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        answer = json.load(response)
    assert answer["choices"][0]["message"]["content"].startswith("two plus three is")


def test_example_of_the_page_runs(adapter: str, tmp_path: Path) -> None:
    (tmp_path / "circle.jpg").write_bytes(jpeg("red", "circle"))
    command = [sys.executable, str(EXAMPLES / "completions.py"), adapter, "circle.jpg"]
    command.append(str(FOLDER / "goodbye.wav"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == ["i see a red circle", "two plus three is five"]
    with wave.open(str(tmp_path / "answer.wav")) as file:
        assert file.getnframes() > 0
