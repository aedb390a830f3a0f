"""Today's adapter, clients and callers at a worker of the release before."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

import antiphon
from antiphon.grpc import get_info
from inference_service.rpc.servicer import InferenceServicer
from tests.cli.test_serve import one_answer, one_turn, one_utterance
from tests.skew.contract import Contract, Narrowed
from tests.support.scripted_engine import EVERYTHING, TALK, ScriptedEngine, running_worker, turn_end, write
from tests.ws_adapter.support.stage import Stage, running_adapter

REPLY = (write("Yes."), turn_end())


def narrow_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers know no more than the contract of the release before."""
    today = InferenceServicer.methods
    monkeypatch.setattr(InferenceServicer, "methods", lambda servicer: Narrowed(Contract(), today(servicer)))


Served = Callable[..., AbstractAsyncContextManager[Stage]]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    """An adapter of today in front of a worker that speaks the contract of the release before."""
    narrow_workers(monkeypatch)

    @asynccontextmanager
    async def served(*script: object) -> AsyncIterator[Stage]:
        engine = ScriptedEngine(*script, repeat=True, info=EVERYTHING)  # type: ignore[arg-type]
        async with running_worker(engine) as worker, running_adapter(worker.address) as stage:
            yield stage

    return served


@pytest.mark.parametrize(
    ("script", "ask", "answer"),
    [
        (TALK, one_turn, "Hello there how are you?"),
        (REPLY, one_answer, "Yes."),
    ],
    ids=["conversation", "chat"],
)
async def test_conversation_and_chat(
    served: Served, script: Sequence[object], ask: Callable[[str], Awaitable[str]], answer: str
) -> None:
    async with served(*script) as stage:
        assert await ask(stage.address) == answer


async def test_transcription(served: Served) -> None:
    async with served(*REPLY) as stage:
        assert (await one_utterance(stage.address)).startswith("Yes.")


async def test_old_worker_chat_with_tools_is_rejected(served: Served) -> None:
    tool = antiphon.Tool("now", "The time of day.", {"type": "object"})
    async with served(*REPLY) as stage, antiphon.connect(stage.address) as client:
        with pytest.raises(antiphon.AntiphonError, match="tools"):
            async with client.chat("What time is it?", tools=[tool]) as turn:
                await turn.answer()


async def test_video_is_refused_by_a_worker_that_knows_none(served: Served) -> None:
    video = antiphon.Message("user", [antiphon.Video(b"\0\0\0\x10ftypisom"), "What is this?"])
    async with served(*REPLY) as stage:
        async with antiphon.connect(stage.address) as client:
            with pytest.raises(antiphon.AntiphonError, match=r"messages\[0\]\.content\[0\]") as refused:
                async with client.chat([video]) as turn:
                    await turn.answer()
        assert refused.value.reason == "invalid_payload"
        assert await one_answer(stage.address) == "Yes."


async def test_old_worker_info_missing_fields_take_former_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow_workers(monkeypatch)
    async with running_worker(ScriptedEngine(info=EVERYTHING)) as worker:
        info = await get_info(worker.address)
    assert info.model == "scripted"
    assert not info.calls_tools
