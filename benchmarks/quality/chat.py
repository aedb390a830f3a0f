"""Written conversations to measure with: held-out sentences, unheard voices and pictures of their own."""

import random
from dataclasses import dataclass, replace
from enum import StrEnum

import grpc.aio
import numpy as np

from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from benchmarks.quality.film import SIZES
from benchmarks.quality.scoring import Score, Turn
from benchmarks.quality.session import UnitByUnit, sound
from inference_service.training.chat import styled
from inference_service.training.corpus.pictures import NOTHING, SCENES, draw_picture, encoded
from inference_service.training.corpus.voices import SAMPLE_RATE, held_out_voice
from inference_service.training.domains.domain import Exchange, Split
from inference_service.training.domains.mini import HEARING, Intent, draw

_PER_TALK = 3
"""Questions of one conversation; the later ones have the earlier answers before them."""
_NOTHING_SHOWN = 0.08


class ChatCondition(StrEnum):
    """What a row of the chat table is measured under."""

    TEXT = "chat: text"
    PICTURE = "chat: pictures"
    CLIP = "chat: clips"


@dataclass(frozen=True)
class Asked:
    """One message of the user and what belongs to it."""

    exchange: Exchange
    parts: tuple[pb.Content, ...]


def talks(condition: ChatCondition, questions: int, seed: int) -> list[list[Asked]]:
    """Conversations with at least `questions` questions, uniform over the intents."""
    rng = random.Random(f"{seed} {condition}")
    intents = (Intent.VISION,) if condition is ChatCondition.PICTURE else HEARING
    rounds = -(-questions // len(intents))
    asked = [
        _ask(condition, rng, draw(rng, Split.HELD_OUT, intent))
        for _ in range(rounds)
        for intent in rng.sample(intents, len(intents))
    ]
    return [asked[i : i + _PER_TALK] for i in range(0, len(asked), _PER_TALK)]


def _ask(condition: ChatCondition, rng: random.Random, exchange: Exchange) -> Asked:
    text = pb.Content(text=styled(exchange.question, rng))
    match condition:
        case ChatCondition.PICTURE:
            scene = NOTHING if rng.random() < _NOTHING_SHOWN else rng.choice(SCENES[1:])
            paint = np.random.default_rng(rng.randrange(1 << 30))
            picture = common.Image(data=encoded(paint, draw_picture(paint, scene, rng.choice(SIZES))))
            return Asked(replace(exchange, reply=scene.reply), (pb.Content(image=picture), text))
        case ChatCondition.CLIP:
            pcm = held_out_voice(rng).say(exchange.question) * np.float32(10 ** rng.uniform(-0.6, 0.1))
            around = [rng.randrange(SAMPLE_RATE // 2) for _ in range(2)]
            return Asked(exchange, (pb.Content(audio=sound(np.pad(pcm, around))),))
        case ChatCondition.TEXT:
            return Asked(exchange, (text,))


async def converse(
    channel: grpc.aio.Channel, talk: list[Asked], seed: int, speaks: bool
) -> list[tuple[Asked, Turn]]:
    """The answers to a conversation, in each turn of which the history is sent again."""
    session = UnitByUnit(channel)
    await session.open(pb.SessionConfig(mode=pb.SESSION_MODE_CHAT, seed=seed))
    history: list[pb.ChatMessage] = []
    answered = []
    for asked in talk:
        history.append(pb.ChatMessage(role=pb.ROLE_USER, content=asked.parts))
        tts = pb.TtsConfig(enabled=True) if speaks else None
        turn = await session.play(pb.PrefillRequest(turn=pb.TurnInput(messages=history, tts=tts)))
        history.append(pb.ChatMessage(role=pb.ROLE_ASSISTANT, content=[pb.Content(text=turn.text)]))
        turn.text = " ".join(turn.text.split())
        answered.append((asked, turn))
    await session.close()
    return answered


def add(score: Score, answered: list[tuple[Asked, Turn]]) -> list[tuple[Exchange, Turn]]:
    """Count one conversation; return the exactly right answers."""
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
