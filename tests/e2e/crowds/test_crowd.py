"""Spoken conversations at once on one CPU worker."""

import asyncio
from collections import Counter

import numpy as np

from antiphon.grpc import Audio, Session, Text, UnitDone
from antiphon.v1 import inference_service_pb2 as pb
from tests.e2e.conftest import Recording

CROWD = 10
SILENCE_S = 7
Answer = tuple[tuple[int, ...], tuple[str, ...], str, int]


async def converse(target: str, recording: Recording, seed: int) -> Answer:
    ids: list[int] = []
    ends: list[str] = []
    text, samples = "", 0
    config = pb.SessionConfig(mode=pb.SESSION_MODE_AUDIO, seed=seed)
    async with Session.open(target, config) as session:

        async def send() -> None:
            for pcm in recording.units(SILENCE_S):
                await session.send_unit(pcm)
            session.half_close()

        sending = asyncio.create_task(send())
        async for output in session:
            match output:
                case Text(text=said, token_ids=said_ids):
                    text += said
                    ids += said_ids
                case Audio(samples=pcm):
                    samples += len(pcm)
                    assert np.isfinite(pcm).all()
                    assert np.abs(pcm).max() <= 1
                case UnitDone(end=end):
                    ends.append(str(end))
        await sending
    return tuple(ids), tuple(ends), " ".join(text.split()), samples


async def test_most_recorded_questions_are_answered_exactly_right(
    worker: str, recordings: list[Recording]
) -> None:
    answers = await asyncio.gather(*(converse(worker, r, seed=1) for r in recordings[:CROWD]))
    right = Counter(answer[2] == r.reply for answer, r in zip(answers, recordings, strict=False))
    assert right[True] >= CROWD / 2, [(r.reply, a[2]) for a, r in zip(answers, recordings, strict=False)]


async def test_a_session_without_speech_in_it_stays_silent(worker: str) -> None:
    hush = Recording("silence", "", np.zeros(16_000 * 20, np.float32))
    ids, ends, text, samples = await converse(worker, hush, seed=3)
    assert (ids, text, samples) == ((), "", 0)
    assert set(ends) == {"listen"}
