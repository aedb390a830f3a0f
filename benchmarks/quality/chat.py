"""Chats for the evaluation: held-out sentences, held-out voices and new pictures."""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import grpc.aio
import numpy as np

from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from antiphon_training.corpus.pictures import (
    NOTHING,
    SCENES,
    draw_picture,
    encoded,
)
from antiphon_training.corpus.voices import SAMPLE_RATE, held_out_voice
from antiphon_training.domains.domain import Exchange, Split
from antiphon_training.domains.mini import (
    SET_LIGHT,
    SPOKEN_INTENTS,
    Intent,
    draw,
)
from antiphon_training.domains.tool import unused_tool
from antiphon_training.stages.chat import styled
from benchmarks.quality.camera import SIZES
from benchmarks.quality.scoring import Score, Turn
from benchmarks.quality.session import UnitByUnit, UnitFailed, sound

_PER_TALK = 3
"""Questions per chat; the history contains the earlier ones with their answers."""
_NOTHING_SHOWN = 0.08
_REQUESTS = 6
"""Requests for the tool per round; each other intent has one question."""
_OTHERS = 0.4
"""The share of chats with a second, unused tool."""


class ChatCondition(StrEnum):
    """The condition of a row in the chat table."""

    TEXT = "chat: text"
    PICTURE = "chat: pictures"
    CLIP = "chat: clips"
    TOOL = "chat: a tool"
    SPOKEN_TOOL = "chat: a tool, clips"


_TOOLS = (ChatCondition.TOOL, ChatCondition.SPOKEN_TOOL)
_CLIPS = (ChatCondition.CLIP, ChatCondition.SPOKEN_TOOL)


@dataclass(frozen=True)
class Asked:
    """One message of the user, and its exchange.

    The expected reply to a request for the tool is `CALL: ANSWER`, with the answer to the result of the call.
    """

    exchange: Exchange
    parts: tuple[pb.Content, ...]
    result: str = ""
    """The result of the call, for the model."""


@dataclass(frozen=True)
class Talk:
    """A chat: its questions in order, and its tools."""

    asked: list[Asked]
    tools: list[pb.Tool] = field(default_factory=list)


def talks(condition: ChatCondition, questions: int, seed: int) -> list[Talk]:
    """Return chats with at least `questions` questions in sum, uniform over the intents."""
    rng = random.Random(f"{seed} {condition}")
    intents: tuple[Intent, ...] = (Intent.VISION,) if condition is ChatCondition.PICTURE else SPOKEN_INTENTS
    if condition in _TOOLS:
        intents = (*SPOKEN_INTENTS, *[Intent.LIGHT] * (_REQUESTS - 1))
    rounds = -(-questions // len(intents))
    drawn = [
        draw(rng, Split.HELD_OUT, intent)
        for _ in range(rounds)
        for intent in rng.sample(intents, len(intents))
    ]
    return [_talk(condition, rng, drawn[i : i + _PER_TALK]) for i in range(0, len(drawn), _PER_TALK)]


def _talk(condition: ChatCondition, rng: random.Random, exchanges: list[Exchange]) -> Talk:
    asked = [_ask(condition, rng, exchange) for exchange in exchanges]
    schemas = [SET_LIGHT.offer(rng)] if condition in _TOOLS else []
    if schemas and rng.random() < _OTHERS:
        schemas.insert(rng.randint(0, 1), unused_tool(rng))
    return Talk(asked, [_tool(schema["function"]) for schema in schemas])


def _tool(function: Mapping[str, Any]) -> pb.Tool:
    parameters = json.dumps(function["parameters"])
    return pb.Tool(name=function["name"], description=function["description"], parameters_json=parameters)


def _ask(condition: ChatCondition, rng: random.Random, exchange: Exchange) -> Asked:
    text = pb.Content(text=styled(exchange.question, rng))
    if condition is ChatCondition.PICTURE:
        scene = NOTHING if rng.random() < _NOTHING_SHOWN else rng.choice(SCENES[1:])
        paint = np.random.default_rng(rng.randrange(1 << 30))
        picture = common.Image(data=encoded(paint, draw_picture(paint, scene, rng.choice(SIZES))))
        return Asked(replace(exchange, reply=scene.reply), (pb.Content(image=picture), text))
    if condition in _CLIPS:
        pcm = held_out_voice(rng).say(exchange.question) * np.float32(10 ** rng.uniform(-0.6, 0.1))
        around = [rng.randrange(SAMPLE_RATE // 2) for _ in range(2)]
        text = pb.Content(audio=sound(np.pad(pcm, around)))
    if condition not in _TOOLS or exchange.intent != SET_LIGHT.intent:
        return Asked(exchange, (text,))
    result, answer = SET_LIGHT.result(rng, exchange.reply)
    call = _called(SET_LIGHT.name, json.dumps({SET_LIGHT.key: SET_LIGHT.values[exchange.reply]}))
    return Asked(replace(exchange, reply=f"{call}: {answer}"), (text,), result)


def _called(name: str, arguments: str) -> str:
    return f"{name} {arguments}"


async def converse(
    channel: grpc.aio.Channel, talk: Talk, seed: int, speaks: bool
) -> list[tuple[Asked, Turn]]:
    """Hold a chat and return its answers; every turn sends the whole history.

    The answer of a failed turn, such as one with a malformed tool call, is the error. It is not added to the
    history.
    """
    session = UnitByUnit(channel)
    await session.open(pb.SessionConfig(mode=pb.SESSION_MODE_CHAT, seed=seed))
    tts = pb.TtsConfig(enabled=True) if speaks else None
    history: list[pb.ChatMessage] = []

    async def answer() -> Turn:
        given = pb.TurnInput(messages=history, tts=tts, tools=talk.tools)
        turn = await session.play(pb.PrefillRequest(turn=given))
        content = [pb.Content(text=turn.text)] if turn.text else []
        history.append(pb.ChatMessage(role=pb.ROLE_ASSISTANT, content=content, tool_calls=turn.calls))
        return turn

    answered = []
    for asked in talk.asked:
        before = len(history)
        history.append(pb.ChatMessage(role=pb.ROLE_USER, content=asked.parts))
        said = ""
        try:
            turn = await answer()
            if turn.calls:
                said = ", ".join(_called(call.name, call.arguments_json) for call in turn.calls) + ": "
                for call in turn.calls:
                    result = [pb.Content(text=asked.result)]
                    history.append(pb.ChatMessage(role=pb.ROLE_TOOL, content=result, tool_call_id=call.id))
                turn = await answer()
        except UnitFailed as error:
            turn = Turn(0, str(error))
            del history[before:]
        turn.text = said + " ".join(turn.text.split())
        answered.append((asked, turn))
    await session.close()
    return answered


def add(score: Score, answered: list[tuple[Asked, Turn]]) -> list[tuple[Exchange, Turn]]:
    """Count one chat; return the exactly right answers."""
    right = []
    for asked, turn in answered:
        exchange = asked.exchange
        tally = score.by_intent[exchange.intent]
        tally.asked += 1
        if turn.text == exchange.reply:
            tally.right += 1
            right.append((exchange, turn))
        else:
            written = " ".join(part.text for part in asked.parts if part.text)
            score.wrong.append((written or exchange.question, exchange.reply, turn.text))
    return right
