"""Conversations, chats and transcriptions at once on one CPU worker: each is what it is alone."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial

import numpy as np
import pytest

from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from tests.e2e.conftest import Recording, running_worker
from tests.e2e.support.visit import visit
from tests.inference_service.support.caller import Content, duplex
from tests.support.drawing import jpeg

SILENCE_S = 3
Told = list[tuple[str, tuple[int, ...], int, pb.UnitEnd, pb.FinishReason]]
Visit = Callable[[float], Awaitable[Told]]


async def told(
    worker: str, mode: pb.SessionMode, seed: int, units: Sequence[Content], late: float = 0.0
) -> Told:
    """One session; of each unit its text, ids, samples and how it ended. `late` scatters the beginnings."""
    await asyncio.sleep(late)
    return [
        (it.text, tuple(it.token_ids), it.samples, it.done.end, it.done.finish_reason)
        for it in await visit(worker, units, mode=mode, seed=seed)
    ]


def conversation(recording: Recording) -> list[pb.DuplexInput]:
    return [duplex(pcm) for pcm in recording.units(SILENCE_S)]


def chat(recording: Recording) -> list[pb.TurnInput]:
    """A question in writing, one about a picture, one in sound; two answers are spoken."""
    picture = pb.Content(image=common.Image(data=jpeg("red", "circle", (640, 480))))
    asked = [
        [pb.Content(text="What is three plus four?")],
        [picture, pb.Content(text="What do you see?")],
        [pb.Content(audio=duplex(recording.pcm).audio)],
    ]
    return [
        pb.TurnInput(
            messages=[pb.ChatMessage(role=pb.ROLE_USER, content=content)], tts=pb.TtsConfig(enabled=i != 1)
        )
        for i, content in enumerate(asked)
    ]


def dictation(recording: Recording) -> list[pb.StreamInput]:
    chunks = np.split(recording.pcm, range(7_000, len(recording.pcm), 7_000))
    utterance = [
        pb.StreamInput(audio=duplex(pcm).audio, begin_utterance=i == 0) for i, pcm in enumerate(chunks)
    ]
    return [*utterance, pb.StreamInput(end_utterance=True)] * 2


@pytest.fixture(scope="module")
def worker() -> Iterator[str]:
    """Without a recogniser: in a crowd its words may come too late for a unit."""
    with running_worker("--no-admission", "--ear", "fast") as server:
        yield server.address


async def test_concurrent_sessions_of_all_kinds_answer_as_when_alone(
    worker: str, recordings: list[Recording]
) -> None:
    visits: list[Visit] = []
    for seed, recording in enumerate(recordings[:3]):
        visits += [
            partial(told, worker, pb.SESSION_MODE_AUDIO, seed, conversation(recording)),
            partial(told, worker, pb.SESSION_MODE_CHAT, seed, chat(recording)),
            partial(told, worker, pb.SESSION_MODE_TRANSCRIBE, seed, dictation(recording)),
        ]
    alone = [await one(0.0) for one in visits]
    rng = random.Random(0)
    together = await asyncio.gather(*(one(rng.uniform(0, 0.3)) for one in visits))

    assert together == alone
    # Else there was little to compare.
    for kind in range(3):
        assert sum(len(ids) for one in alone[kind::3] for _, ids, *_ in one) >= 10
    assert sum(samples for one in alone[1::3] for _, _, samples, *_ in one) > 24_000
