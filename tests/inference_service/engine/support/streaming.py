"""Token streams over a tiny model, tick by tick on the test's own thread; every row fed is counted."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inference_service.checkpoints import causal
from inference_service.checkpoints.causal import CausalCheckpoint
from inference_service.engine.batch.decoder import Segment
from inference_service.engine.tick import Tick
from inference_service.families.causal_runtime import CausalRuntime
from inference_service.interface.engine import Event, Failure
from inference_service.interface.setups import Sampling, StreamInput, TokensSetup, UnitOverrides
from inference_service.session.kinds.tokens import TokensSession
from tests.inference_service.engine.support.talk import Said, write_ahead

GREEDY = Sampling(max_new_tokens=4, temperature=0.0, top_p=1.0)


def load(folder: Path) -> CausalCheckpoint:
    """Load a generated model."""
    return causal.load(folder, torch.device("cpu"), torch.float32)


class CountingRuntime(CausalRuntime):
    """A runtime that records the rows of each forward by slot, and fails forwards of `spoiled` slots."""

    def __init__(self, checkpoint: CausalCheckpoint, context_limit: int, slots: int) -> None:
        super().__init__(checkpoint, context_limit, slots)
        self.forwards: list[dict[int, int]] = []
        self.spoiled: set[int] = set()
        """The slots whose next forward gives NaN."""

    @property
    def rows(self) -> int:
        """All rows fed so far."""
        return sum(sum(forward.values()) for forward in self.forwards)

    def think(self, segments: list[Segment]) -> list[Tensor | None]:
        self.forwards.append({segment.slot: len(segment.rows) for segment in segments})
        hidden = super().think(segments)
        for i, segment in enumerate(segments):
            if segment.slot in self.spoiled:
                self.spoiled.remove(segment.slot)
                hidden[i] = None
        return hidden


def most(count: int) -> UnitOverrides:
    """Return overrides that allow at most `count` tokens for one chunk."""
    return UnitOverrides(max_new_tokens=count)


class Chunked(Said):
    """The events of one unit."""


class Player:
    """One token stream and its events; several share a `Stage`."""

    def __init__(self, stage: "Stage", stream: TokensSession) -> None:
        self.stage = stage
        self.stream = stream
        self.events: list[Event] = []
        self.sent = 0

    def send(
        self,
        chunk: Sequence[int] | str | None,
        *,
        begins: bool = False,
        ends: bool = False,
        overrides: UnitOverrides | None = None,
        rejection: Failure | None = None,
        keep: bool = False,
        asks: bool = True,
    ) -> int:
        """Queue a unit, with its requests unless not `asks`; run no tick."""
        self.sent += 1
        content = StreamInput(
            chunk if chunk is None or isinstance(chunk, str) else tuple(chunk), begins, ends
        )
        write_ahead(self.stream, self.sent, content)
        if asks:
            self.ask(overrides, rejection, keep=keep)
        return self.sent

    def ask(
        self, overrides: UnitOverrides | None = None, rejection: Failure | None = None, *, keep: bool = False
    ) -> None:
        """Queue the requests of the last unit."""
        queue = self.stream.queue
        if rejection is not None:
            queue.reject(self.sent, rejection)
        else:
            queue.generate(self.sent, False, overrides or UnitOverrides())
        queue.finalize(self.sent, keep_last_token=keep)

    def unit(self, chunk: Sequence[int] | str | None, **settings: Any) -> Chunked:
        """Run a whole unit; return its events."""
        number = self.send(chunk, **settings)
        self.stage.run()
        return self.said(number)

    def said(self, number: int) -> Chunked:
        """Return the events of a unit so far."""
        return Chunked([event for event in self.events if getattr(event, "unit", None) == number])


class Stage:
    """A runtime and the streams in it."""

    def __init__(
        self, checkpoint: CausalCheckpoint, *, slots: int = 1, limit: int = 128, budget: int | None = None
    ) -> None:
        self.runtime = CountingRuntime(checkpoint, limit, slots)
        self.tick = Tick(self.runtime, budget)
        self.players: dict[int, Player] = {}

    def open(self, sampling: Sampling = GREEDY, *, seed: int = 0, prompt: str = "") -> Player:
        """Open a session and feed its prompt."""
        player = self.join(sampling, seed=seed, prompt=prompt)
        self.run(until=lambda: bool(player.events))
        return player

    def join(self, sampling: Sampling = GREEDY, *, seed: int = 0, prompt: str = "") -> Player:
        """Open a session in the lowest free slot; run no tick."""
        slot = next(i for i in range(len(self.players) + 1) if i not in self.players)
        setup = TokensSetup(sampling, seed, prompt)
        stream = self.runtime.open(f"s{slot}", slot, setup, lambda event: None)
        assert isinstance(stream, TokensSession)
        player = self.players[slot] = Player(self, stream)
        refusal = self.runtime.start(stream)
        if refusal is not None:
            stream.events.append(refusal)
        return player

    def leave(self, player: Player) -> None:
        """End the session and clear its slot."""
        self.runtime.clear(player.stream.slot)
        del self.players[player.stream.slot]

    def step(self) -> None:
        """Run one tick for all streams."""
        self.tick.run([player.stream for player in self.players.values()])
        self._collect()

    def _collect(self) -> None:
        for player in self.players.values():
            player.events += player.stream.events
            player.stream.events.clear()

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Run ticks until no session has work, or until a condition holds."""
        self._collect()
        for _ in range(2000):
            if until() or not self.tick.has_work([player.stream for player in self.players.values()]):
                return
            self.step()
        raise AssertionError("the streams do not come to an end")
