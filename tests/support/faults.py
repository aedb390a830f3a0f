"""Faults inside the real engine, of the session that is called after them and of no other.

A session with the id `attack-NAME-AFTER-...` meets the fault NAME of `FAULTS`; in a step of several sessions
only when it has been in that step with others AFTER times, and from then on. A step alone counts half, since
the clock decides who is in a tick with whom. Faults are brought about by wrapping what the engine calls.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from inference_service.engine.runtime import Runtime
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.session.kinds.duplex import DuplexSession
from inference_service.session.kinds.duplex_transcription import DuplexTranscription
from inference_service.session.kinds.spoken_chat import SpokenChatSession

Fault = Callable[[], None]


def _value_error() -> None:
    raise ValueError("canary-4711")


def _index_error() -> None:
    torch.zeros(2)[7]


def _assertion() -> None:
    raise AssertionError


def _no_memory() -> None:
    torch.empty(2**50)


def _no_host_memory() -> None:
    bytearray(2**60)


def _device() -> None:
    raise torch.AcceleratorError("CUDA error: device-side assert triggered")


def _hang() -> None:
    threading.Event().wait()


FAULTS: dict[str, tuple[str, Fault]] = {
    "open": ("open", _value_error),
    "start": ("start", _value_error),
    "unit": ("refuse_unit", _value_error),
    "hear": ("hear", _value_error),
    "read": ("read", _assertion),
    "think": ("think", _index_error),
    "feed": ("take", _assertion),
    "begin": ("begin_generate", _value_error),
    "draw": ("draw", _value_error),
    "choose": ("choose", _index_error),
    "decide": ("decide", _assertion),
    "embed": ("feed", _index_error),
    "settle": ("settle", _index_error),
    "rebuild": ("rebuild", _index_error),
    "speech": ("forward", _index_error),
    "codes": ("take_codes", _assertion),
    "mouth": ("say", _value_error),
    "spoken": ("spoken", _value_error),
    "end": ("end_unit", _value_error),
    "finalize": ("finalize", _value_error),
    "memory": ("think", _no_memory),
    "hostmemory": ("hear", _no_host_memory),
    "device": ("think", _device),
    "hang": ("think", _hang),
}
ENDINGS = ("device", "hang")


PLACES = ("open", "start", "hear", "think", "settle", "rebuild", "choose")
SHARED = ("hear", "think", "settle", "rebuild", "choose", "forward", "say")


@dataclass
class Victim:
    place: str
    fault: Fault
    patience: float
    """How often it passes that place in company before."""

    def meet(self, *, has_company: bool) -> None:
        self.patience -= 1.0 if has_company else 0.5
        if self.patience <= 0 or self.place not in SHARED:
            self.fault()


def break_in(runtime: Runtime) -> None:
    """Install the faults for sessions with such ids."""
    victims: dict[int, Victim] = {}
    real = {name: getattr(runtime, name) for name in (*PLACES, "clear")}
    doing, listening = ["think"], list[int]()
    deciding: dict[int, Any] = {}

    def meet(place: str, slots: Sequence[int]) -> None:
        for victim in [victims[slot] for slot in slots if slot in victims]:
            if victim.place == place:
                victim.meet(has_company=len(slots) > 1)

    def opened(session_id: str, slot: int, *others: Any) -> Any:
        _, name, after, *_ = [*session_id.split("-"), "", ""]
        place, fault = FAULTS.get(name, ("", _value_error))
        if place == "open":
            fault()
        session = real["open"](session_id, slot, *others)
        if name in FAULTS:
            victims[slot] = Victim(place, fault, int(after))
        if hasattr(session, place) and place not in SHARED:
            setattr(session, place, lambda *_, **__: fault())
        elif victims.get(slot) and place == "choose":
            _note_draws(session, deciding)
        if name == "longword":
            _spells_one_word(session)
        return session

    def started(session: Any) -> Any:
        meet("start", [session.slot])
        return real["start"](session)

    def heard(sessions: Any) -> None:
        listening[:] = [s.slot for s in sessions if isinstance(s, DuplexSession | DuplexTranscription)]
        meet("hear", [session.slot for session in sessions if session.slot not in listening])
        real["hear"](sessions)

    def encoded(*given: Any) -> Any:
        embeddings = encode(*given)
        meet("hear", listening)
        return embeddings

    def thought(segments: Any) -> Any:
        real["think"](segments)  # what a forward leaves behind that fails at its end
        meet(doing[-1], [segment.slot for segment in segments if segment.start or len(segment.rows) > 1])
        return real["think"](segments)

    def chosen(hidden: Any, draws: Any) -> Any:
        tokens = real["choose"](hidden, draws)  # and nobody has moved
        own = [slot for slot, asked in deciding.items() if any(asked is draw for draw in draws)]
        meet("choose", own + [-1] * (len(draws) - len(own)))
        return tokens

    def settled(contexts: Any) -> None:
        during("settle", contexts)

    def rebuilt(contexts: Any) -> None:
        during("rebuild", contexts)

    def during(place: str, contexts: Any) -> None:
        doing.append(place)
        try:
            real[place](contexts)
        finally:
            doing.pop()

    def cleared(slot: int) -> None:
        victims.pop(slot, None)
        real["clear"](slot)

    wrappers = (opened, started, heard, thought, settled, rebuilt, chosen)
    for name, wrapped in zip(PLACES, wrappers, strict=True):
        setattr(runtime, name, wrapped)
    runtime.clear = cleared  # type: ignore[method-assign]
    if isinstance(runtime, DuplexRuntime):
        ear = runtime.components.ear
        encode, ear.encode = ear.encode, encoded  # type: ignore[method-assign]
        _break_voice(runtime, meet)


def _note_draws(session: Any, deciding: dict[int, Any]) -> None:
    draw = session.draw

    def asked() -> Any:
        deciding[session.slot] = draw()
        return deciding[session.slot]

    session.draw = asked


def _break_voice(runtime: DuplexRuntime, meet: Callable[[str, Sequence[int]], None]) -> None:
    speaker, voices = runtime.speaker, runtime.components.speech
    assert speaker is not None
    assert voices is not None
    forward, take, say = speaker.forward, speaker.take, runtime._say

    def stepped(jobs: Any) -> Any:
        forward(jobs)
        meet("forward", [job.state.slot for job in jobs if job.state.unfed and not job.codes])
        return forward(jobs)

    def taken(job: Any, step: Any) -> None:
        meet("take_codes", [job.state.slot])
        take(job, step)

    def said(chunks: Any) -> Any:
        sounds = real_say(chunks)  # and every voice has moved
        meet("say", [slots[id(chunk.state)] for chunk in chunks])
        return sounds

    slots: dict[int, int] = {}
    real_say = voices.mouth.say

    def saying(finished: Any) -> None:
        slots.update({id(session.mouth): session.slot for session, _ in finished})
        say(finished)

    speaker.forward, speaker.take, runtime._say = stepped, taken, saying  # type: ignore[method-assign]
    voices.mouth.say = said  # type: ignore[method-assign]


def _spells_one_word(session: Any) -> None:
    """Restrict the model to letters without any space."""
    assert isinstance(session, SpokenChatSession)
    template = session.dialogue.template
    ids = range(int(session.context.decoder.backbone.config.vocab_size))
    letter = next(i for i in ids if template.decode([i]) == "e")
    others = torch.tensor([i for i in ids if i != letter])
    session.dialogue = replace(session.dialogue, forbidden=others, ends=frozenset())
