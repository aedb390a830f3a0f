"""A spoken question to the shipped model, with the times of its units and their answers."""

import asyncio
import json
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from websockets.asyncio.client import ClientConnection

from antiphon.connection.endpoint import REALTIME, endpoint, open_websocket
from antiphon_command.bench.talker import UNIT_S

ANSWER_S: Final = 20.0
"""The longest wait for an event, in seconds."""


class Kind(StrEnum):
    """The outcome of a unit."""

    LISTENS = "listening"
    SPEAKS = "speaking"


@dataclass(frozen=True)
class Unit:
    """A unit: its monotonic send time, that of the next unit, and its outcome."""

    sent: float
    next_sent: float
    kind: Kind


async def converse(url: str, seconds: list[str], silent_s: float) -> list[Unit]:
    """Send `seconds` (base64 of float32 mono at 16 kHz), one per second, then nothing for `silent_s`.

    Return the units between two units of the same kind: the units at the beginning and end of a turn have
    more events than others.
    """
    socket = await open_websocket(endpoint(url, REALTIME, "audio"), None)
    async with socket:
        await socket.send('{"type":"session.init","payload":{}}')
        await _until(socket, "session.created")
        sent, kinds = [], []
        for second in seconds:
            due = time.monotonic() + UNIT_S
            sent.append(time.monotonic())
            await socket.send(json.dumps({"type": "input.append", "input": {"audio": second}}))
            kinds.append(await _answer(socket))
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        sent.append(time.monotonic())
        await asyncio.sleep(silent_s)
    return [
        Unit(sent[i], sent[i + 1], kinds[i])
        for i in range(1, len(kinds) - 1)
        if kinds[i - 1] is kinds[i] is kinds[i + 1]
    ]


async def _answer(socket: ClientConnection) -> Kind:
    event = await _until(socket, "response.output.delta")
    return Kind.LISTENS if event["kind"] == "listen" else Kind.SPEAKS


async def _until(socket: ClientConnection, kind: str) -> dict[str, str]:
    async with asyncio.timeout(ANSWER_S):
        while True:
            event: dict[str, str] = json.loads(await socket.recv())
            if event["type"] == kind:
                return event
