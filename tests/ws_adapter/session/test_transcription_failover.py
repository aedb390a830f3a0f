"""Transcriptions whose worker is lost: another one hears the open utterance again, each word comes once."""

import asyncio
from typing import Any, Final

import pytest

from antiphon_service.semconv import FailoverOutcome
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import EVERYTHING, Play, Script, write
from tests.ws_adapter.session.test_failover import backend
from tests.ws_adapter.support.realtime_ga_conversation import append as ga_append
from tests.ws_adapter.support.stage import Client, until
from tests.ws_adapter.support.transcription_conversation import COMMIT, FINAL, Event, append

pytestmark = pytest.mark.usefixtures("patience")

PATH = "/v1/transcription"
UPDATE: Final[Event] = {"type": "session.update", "model": EVERYTHING.name}
FIRST = write("one ")
SECOND = ("two ", "three ")
LAST = write("four.")


async def words_up_to(client: Client, text: str) -> str:
    """The deltas, until they are this text."""
    told = ""
    while told != text:
        event = await client.next()
        assert not event["type"].startswith("error"), event
        told += event.get("delta") or ""
    return told


async def begun(client: Client, *words: str) -> None:
    """An utterance that is not over: a second, and one more behind each of these words."""
    await client.expect("session.created")
    await client.send(UPDATE, COMMIT, append())
    for word in words:
        await words_up_to(client, word)
        await client.send(append())


async def test_open_utterance_is_heard_again_and_its_words_come_once() -> None:
    """One slice was answered, and of another something was told."""
    async with backend(FIRST, write(*SECOND, hold="generate"), info=EVERYTHING) as home:
        async with home.stage.client(PATH) as client, asyncio.timeout(PATIENCE_S):
            await begun(client, "one ")
            await words_up_to(client, "two three ")
            first = home.at
            home.engines[1 - first].script = Script((FIRST, write(*SECOND), LAST))
            home.lose(first)
            await client.send(append(), FINAL)
            told = await words_up_to(client, "four.")
            done = await client.next()
            assert (done["type"], done["text"]) == ("transcription.done", "one two three four.")
            assert told == "four."
            counted = done["usage"]["completion_tokens"]
            assert counted == 1 + 2 + 1 + 1, "the end of the utterance counts one, and no token counts twice"
            heard = list(home.engines[1 - first].session.given.values())
            assert [slice.begins for slice in heard] == [True, False, False, False]  # type: ignore[union-attr]
            assert await home.outcome(FailoverOutcome.CONTINUED) == 1
        assert await home.value("antiphon_journal_bytes") == 0


async def test_item_of_realtime_is_heard_again() -> None:
    async with backend(write("one ", hold="generate"), info=EVERYTHING) as home:
        path = "/v1/realtime?intent=transcription"
        async with home.stage.client(path) as client, asyncio.timeout(PATIENCE_S):
            await client.expect("session.created")
            detection = {"turn_detection": None, "transcription": {"model": EVERYTHING.name}}
            update = {"type": "transcription", "audio": {"input": detection}}
            await client.send({"type": "session.update", "session": update}, ga_append(0.5))
            await client.send({"type": "input_audio_buffer.commit"})
            await words_up_to(client, "one ")
            first = home.at
            home.engines[1 - first].script = Script((write("one ", "two."),))
            home.lose(first)
            await words_up_to(client, "two.")
            done = await client.next()
            assert done["transcript"] == "one two."


async def test_worker_that_drains_hands_the_utterance_over() -> None:
    async with backend(FIRST, LAST, info=EVERYTHING) as home:
        async with home.stage.client(PATH) as client, asyncio.timeout(PATIENCE_S):
            await begun(client)
            await words_up_to(client, "one ")
            first = home.at
            home.workers[first].worker.interrupt()
            await until(lambda: home.engines[1 - first].sessions)
            await client.send(append(), FINAL)
            done = await client.expect_until("transcription.done")
            assert done["text"] == "one four."


async def test_utterance_longer_than_the_journal_fails_with_its_worker() -> None:
    plays = [write(f"{number} ") for number in range(5)]
    async with backend(*plays, info=EVERYTHING, journal_s=3) as home:
        async with home.stage.client(PATH) as client, asyncio.timeout(PATIENCE_S):
            await client.expect("session.created")
            await client.send(UPDATE, COMMIT)
            for number in range(5):
                await client.send(append())
                await words_up_to(client, f"{number} ")
            home.lose(home.at)
            assert (await client.next())["code"] == "processing_error"
            await client.send(FINAL, COMMIT, append(), FINAL)
            assert (await client.expect_until("transcription.done"))["text"] == "0 "


async def test_audio_that_breaks_its_worker_breaks_two_and_no_third() -> None:
    async with backend(Play(breaks_device=True), workers=3, info=EVERYTHING) as home:
        async with home.stage.client(PATH) as client, asyncio.timeout(PATIENCE_S):
            await begun(client)
            assert (await client.next())["code"] == "processing_error"
            assert await home.outcome(FailoverOutcome.SUSPECT) == 1
            assert sum(bool(engine.sessions) for engine in home.engines) == 2


@pytest.mark.parametrize("options", [{"journal_s": 0}, {"journal_mib": 0}])
async def test_no_journal_no_second_hearing(options: dict[str, Any]) -> None:
    async with backend(FIRST, write(*SECOND, hold="generate"), info=EVERYTHING, **options) as home:
        async with home.stage.client(PATH) as client, asyncio.timeout(PATIENCE_S):
            await begun(client, "one ")
            await words_up_to(client, "two three ")
            home.lose(home.at)
            assert (await client.next())["code"] == "processing_error"
