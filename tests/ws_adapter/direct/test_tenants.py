"""Attacks of one caller on another: prompts read out of the prefix cache, and slots held against everybody.

Two keys, and two addresses, at a real adapter and a real worker with the shipped checkpoint.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from antiphon.grpc import Session
from antiphon.grpc.outputs import Finalized, UnitDone
from antiphon.grpc.status import Status
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import dispatch_service_pb2 as pb
from antiphon.v1 import inference_service_pb2 as session_pb
from inference_service.families.loading import load_engine
from inference_service.interface.engine import Deliver, Engine, OnFatal, Ticked
from inference_service.options import WorkerOptions
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import running_worker
from tests.ws_adapter.direct.test_acquire import KEY, Call, channel_to
from tests.ws_adapter.direct.test_limits import Identity, answer, strangers
from tests.ws_adapter.support.stage import Stage, running_adapter

PAGE = 16
"""Tokens of a page: the steps in which a prompt was confirmed."""
SECRET = (
    "The safe behind the third picture opens with nine four two seven, the guard leaves at ten past two in "
    "the morning, and the dog is called Balthasar; whoever asks, none of this has ever been said by anybody."
)
MORE = (
    "A boat lies under the second bridge since nobody can row it, the river is green and slow in those days, "
    "and the ferryman sings of apples; what he means by them, he never told a soul who came to cross over."
)
GREEDY = common.SamplingParams(temperature=0, max_new_tokens=4)


@dataclass(frozen=True)
class Cost:
    """The answer to a turn, and the rows that the engine computed for it."""

    tokens: int
    cached: int
    computed: int
    """Rows of the language model's forwards, instead of a time: a row that is computed takes its time."""


@dataclass
class Counted:
    """The engine of a worker, and the rows it computes."""

    engine: Engine | None = None
    ticks: list[Ticked] = field(default_factory=list)

    def load(self, options: WorkerOptions, deliver: Deliver, on_fatal: OnFatal) -> Engine:
        self.engine = engine = load_engine(options, deliver, on_fatal)
        engine.watch(self.ticks.extend)
        return engine

    @property
    def computed(self) -> int:
        return sum(tick.tokens for tick in self.ticks)


@dataclass(frozen=True)
class Backend:
    """A worker with the shipped model, an adapter in front of it, and callers who are strangers."""

    stage: Stage
    counted: Counted
    victim: Identity
    attacker: Identity
    witness: Identity
    """A third caller that sends the attacker's guesses before there is anything to find."""

    async def turn(self, identity: Identity, words: str) -> Cost:
        """A chat of one turn in a session of its own."""
        config = session_pb.SessionConfig(mode=session_pb.SESSION_MODE_CHAT, seed=1, sampling=GREEDY)
        return await self._cost(identity, "chat", config, words)

    async def stream(self, identity: Identity, prompt: str) -> Cost:
        """A token stream that begins with a prompt."""
        config = session_pb.SessionConfig(
            mode=session_pb.SESSION_MODE_TOKENS, seed=1, sampling=GREEDY, system_prompt=prompt
        )
        return await self._cost(identity, "chat", config, "x")

    async def _cost(
        self, identity: Identity, kind: str, config: session_pb.SessionConfig, words: str
    ) -> Cost:
        before, usage = self.counted.computed, common.Usage()
        async with leased(self.stage, identity, kind) as lease:
            async with Session.open(lease.target, config, lease=lease.token) as session:
                if config.mode == session_pb.SESSION_MODE_CHAT:
                    await session.send_turn(words)
                else:
                    await session.send_chunk(words)
                left = {UnitDone, Finalized}
                async for output in session:
                    if isinstance(output, UnitDone):
                        assert output.error is None
                        usage = output.usage
                    left.discard(type(output))
                    if not left:
                        break
        return Cost(usage.input_text_tokens, usage.cached_tokens, self.counted.computed - before)


@asynccontextmanager
async def leased(stage: Stage, identity: Identity, kind: str) -> AsyncIterator[pb.Lease]:
    """A lease, for as long as it takes to use it.

    On a busy machine the slots of earlier sessions come back late, and a caller has no more than three.
    """
    async with channel_to(stage) as channel:
        async with asyncio.timeout(PATIENCE_S):
            call = Call(channel, [identity], kind=kind)
            while isinstance(told := await answer(call), Status) or not told.HasField("granted"):
                if isinstance(told, Status):
                    assert told.code is grpc.StatusCode.RESOURCE_EXHAUSTED
                    await asyncio.sleep(0.05)
                    call = Call(channel, [identity], kind=kind)
        yield told.granted


@asynccontextmanager
async def backend(
    callers: Sequence[Identity], options: dict[str, Any], **worker_options: Any
) -> AsyncIterator[Backend]:
    """Yield a backend with an adapter that tells the `callers` apart by its `options`."""
    counted = Counted()
    async with (
        running_worker(counted.load, slots=4, worker_key=KEY, **worker_options) as worker,
        running_adapter(worker.address, worker_key=KEY, grpc_port=0, **options) as stage,
    ):
        yield Backend(stage, counted, *callers)


def guesses(text: str) -> list[str]:
    """Longer and longer beginnings, a page of tokens at a time or less."""
    words = text.split(" ")
    return [" ".join(words[:count]) for count in range(4, len(words), 4)] + [text]


@pytest.mark.parametrize("by", ["key", "address"])
@pytest.mark.sample("address")
async def test_prefix_cache_guesses_of_another_caller_find_nothing(by: str, tmp_path: Path) -> None:
    """A guesser was told how many tokens it had right, a page at a time, and its answer came sooner."""
    async with backend(*strangers(by, tmp_path)) as place:
        before = [await place.turn(place.witness, guess) for guess in guesses(SECRET)]
        first = await place.turn(place.victim, SECRET)
        after = [await place.turn(place.attacker, guess) for guess in guesses(SECRET)]
        assert after == before, "a guess costs what it did before anybody else had said it"
        assert after[0].cached == first.cached == 0
        again = await place.turn(place.victim, SECRET)
        assert again.cached >= (first.tokens - 1) // PAGE * PAGE - PAGE > 0, "its own prompt is cached"
        assert again.computed < first.computed


@pytest.mark.parametrize("by", ["key", "address"])
async def test_prefix_cache_whole_prompt_of_another_caller_is_computed_anew(by: str, tmp_path: Path) -> None:
    async with backend(*strangers(by, tmp_path)) as place:
        for ask in (place.turn, place.stream):
            first = await ask(place.victim, SECRET)
            stolen = await ask(place.attacker, SECRET)
            assert stolen == first
            assert (await ask(place.attacker, SECRET)).computed < stolen.computed, "now it is its own"


async def test_prefix_cache_shared_prompt_is_computed_once_for_all_callers(tmp_path: Path) -> None:
    """Only the operator's prompt is shared: what a caller adds to it stays its own."""
    prompts = tmp_path / "prompts.json"
    prompts.write_text(json.dumps([SECRET]))
    async with backend(*strangers("key", tmp_path), shared_prompts=prompts) as place:
        first = await place.stream(place.victim, SECRET)
        other = await place.stream(place.attacker, SECRET)
        assert other.computed <= first.computed - 2 * PAGE
        longer = f"{SECRET} {MORE}"
        own = await place.stream(place.victim, longer)
        guessed = await place.stream(place.attacker, longer)
        assert guessed == own


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded"])
async def test_prefix_cache_callers_behind_a_proxy_that_is_not_trusted_share_nothing(header: str) -> None:
    """All callers come from the proxy's address, so each of them is a tenant of its own."""
    async with backend([(header.lower(), "for=192.0.2.1")] * 3, {}) as place:
        first = await place.turn(place.victim, SECRET)
        assert await place.turn(place.attacker, SECRET) == first
