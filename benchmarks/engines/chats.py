"""Callers of `/v1/chat/completions`, each in its own thread."""

import json
import threading
import time
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any, Final

WORDS: Final = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
PATIENCE_S: Final = 120.0


@dataclass(frozen=True)
class Answer:
    """Times of one chat, in monotonic seconds."""

    began: float
    first: float
    """The time of its first text."""
    ended: float
    tokens: int


def chat(address: str, model: str, caller: int, most: int, text: str = WORDS) -> Answer:
    """Request one streamed answer. The prompt begins with `caller`, so that callers share no cached prefix.

    Raises `RuntimeError` for an error status or an answer without its usage.
    """
    body = {
        "model": model,
        "messages": [{"role": "user", "content": f"{caller} {text}"}],
        "temperature": 0,
        "max_tokens": most,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection = HTTPConnection(address, timeout=PATIENCE_S)
    began = time.monotonic()
    try:
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {response.read()[:300]!r}")
        first, tokens = 0.0, 0
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event: dict[str, Any] = json.loads(line[len(b"data: ") :])
            if not first and any(it["delta"].get("content") for it in event.get("choices", ())):
                first = time.monotonic()
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
        if not tokens:
            raise RuntimeError("The answer ended without its usage.")
        ended = time.monotonic()
        return Answer(began, first or ended, ended, tokens)
    finally:
        connection.close()


def chats(address: str, model: str, callers: int, each: int, most: int) -> list[Answer]:
    """Run `callers` concurrent callers with `each` questions in sequence; return all answers."""
    answers: list[Answer] = []
    errors: list[Exception] = []

    def ask(caller: int) -> None:
        try:
            for number in range(each):
                answers.append(chat(address, model, 1000 * number + caller, most))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=ask, args=(caller,)) for caller in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return answers


def chats_beside(address: str, model: str, crowd: int, text: str, count: int, most: int) -> list[Answer]:
    """Ask short questions in sequence, while `crowd` callers keep the engine busy with the long `text`."""
    is_over = threading.Event()
    errors: list[Exception] = []

    def ask(caller: int) -> None:
        number = caller
        try:
            while not is_over.is_set():
                number += crowd
                chat(address, model, 100_000 + number, 1, text)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=ask, args=(caller,)) for caller in range(crowd)]
    for thread in threads:
        thread.start()
    try:
        answers = [chat(address, model, 50_000 + number, most) for number in range(count)]
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    return answers
