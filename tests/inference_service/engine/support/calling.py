"""Chats with tools over a tiny model, tick by tick on the test's own thread."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from inference_service.engine.runtime import Runtime
from inference_service.engine.tick import Tick
from inference_service.families.causal_runtime import CausalRuntime
from inference_service.interface.engine import CallDelta, Event, Piece
from inference_service.interface.setups import (
    NO_TOOLS,
    ChatMessage,
    ChatSetup,
    Sampling,
    Tool,
    ToolMode,
    Tools,
    TurnInput,
    UnitOverrides,
)
from inference_service.session.base.session import Session
from tests.inference_service.engine.support import streaming
from tests.inference_service.engine.support.talk import Said, write_ahead
from tests.inference_service.engine.support.tiny_caller import CITY

WARM = Sampling(max_new_tokens=200, temperature=1.0, top_p=1.0)
WEATHER = Tool("weather", "Of a city.", CITY)
TIME = Tool("time", "", {"type": "object", "properties": {}, "additionalProperties": False})


def required(*tools: Tool, named: str = "", are_parallel: bool = False) -> Tools:
    """Return tools of which one, or the named one, must be called."""
    return Tools(tools or (WEATHER,), ToolMode.REQUIRED, named, are_parallel=are_parallel)


class Answered(Said):
    """The events of one turn."""

    @property
    def pieces(self) -> list[Piece]:
        return [event for event in self.events if isinstance(event, Piece)]

    @property
    def thinking(self) -> str:
        return "".join(piece.thinking for piece in self.pieces)

    @property
    def calls(self) -> list[tuple[str, str, bool]]:
        """Name and arguments of each call, and whether it is complete."""
        deltas = [piece.call for piece in self.pieces if piece.call is not None]
        return [_joined(list(group)) for _, group in itertools.groupby(deltas, lambda it: it.index)]


def _joined(deltas: list[CallDelta]) -> tuple[str, str, bool]:
    return deltas[0].name, "".join(it.arguments for it in deltas), deltas[-1].complete


class Chats:
    """A model with several chat sessions."""

    def __init__(self, runtime: Runtime, words: PreTrainedTokenizerFast) -> None:
        self.runtime = runtime
        self.tick = Tick(runtime)
        self.words = words
        self.chats: list[Chat] = []

    @classmethod
    def of(cls, folder: Path) -> "Chats":
        """Load a causal model from `folder`."""
        runtime = CausalRuntime(streaming.load(folder), 1024, 3)
        return cls(runtime, PreTrainedTokenizerFast.from_pretrained(folder))

    def open(self, *, seed: int = 1, sampling: Sampling = WARM) -> "Chat":
        """Open a chat in the lowest free slot."""
        chat = Chat(self, len(self.chats), seed, sampling)
        self.chats.append(chat)
        return chat

    def close(self) -> None:
        """End all sessions and clear their slots."""
        for chat in self.chats:
            self.runtime.clear(chat.session.slot)
        self.chats.clear()

    def step(self) -> None:
        """Run one tick for all chats."""
        self.tick.run([chat.session for chat in self.chats])
        for chat in self.chats:
            chat.events += chat.session.events
            chat.session.events.clear()

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Run ticks until no session has work, or until a condition holds."""
        for _ in range(4000):
            if until() or not self.tick.has_work([chat.session for chat in self.chats]):
                return
            self.step()
        raise AssertionError("the chats do not come to an end")


class Chat:
    """One session and its events."""

    def __init__(self, chats: Chats, slot: int, seed: int, sampling: Sampling) -> None:
        self.chats = chats
        self.events: list[Event] = []
        setup = ChatSetup(sampling, seed)
        self.session: Session[Any] = chats.runtime.open(f"chat-{slot}", slot, setup, lambda event: None)
        assert chats.runtime.start(self.session) is None
        self.session.events.clear()
        self._turns = 0
        self._script: list[int] = []
        self._decide = self.session.decide
        self.session.decide = self._decided  # type: ignore[method-assign]

    def say(self, text: str, *, ends: bool = True) -> "Chat":
        """Script the model's next words in place of its draws."""
        words = self.chats.words
        self._script = words.encode(text) + [words.eos_token_id] * ends
        return self

    def _decided(self, token: int | None) -> int | None:
        return self._decide(self._script.pop(0) if self._script else token)

    def send(
        self,
        *said: str | ChatMessage,
        tools: Tools = NO_TOOLS,
        thinking: bool = False,
        speaks: bool = False,
        overrides: UnitOverrides | None = None,
    ) -> int:
        """Queue a turn; a text is a message of the user."""
        messages = tuple(ChatMessage("user", (it,)) if isinstance(it, str) else it for it in said)
        content = TurnInput(messages, enable_thinking=thinking, speaks=speaks, tools=tools)
        self._turns += 1
        orders = {"overrides": overrides or UnitOverrides(), "finalize": True}
        write_ahead(self.session, self._turns, content, **orders)
        return self._turns

    def ask(self, *said: str | ChatMessage, **settings: Any) -> Answered:
        """Run a whole turn; return its events."""
        number = self.send(*said, **settings)
        self.chats.run()
        return self.told(number)

    def told(self, number: int) -> Answered:
        """Return the events of a turn."""
        return Answered([event for event in self.events if getattr(event, "unit", None) == number])
