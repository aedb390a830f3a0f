"""A chat session inside the engine: each unit brings the whole conversation, and is answered."""

import time
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, cast

from inference_service.api.engine import End, Failure, Finalized, Finish, Piece, Ready, SessionFailed, Sink
from inference_service.api.setups import ChatSetup, Sampling, Window
from inference_service.engine.batch.context import Context
from inference_service.engine.batch.draw import UNIFORMS, Draw, drawn_by
from inference_service.engine.batch.noise import Noise
from inference_service.engine.device.rows import Rows
from inference_service.engine.guard import blame
from inference_service.engine.runtime import Runtime
from inference_service.engine.session import Run, Session, SessionKind, Stage
from inference_service.engine.sessions.prompt import (
    ChatPreprocessor,
    Dialogue,
    Passage,
    Prompt,
    Sight,
    Words,
    clip_rows,
)
from inference_service.engine.sessions.text import Detokenizer, StopStrings

POISONED = Failure("INFERENCE_FAILED", "The model gave no usable numbers for this turn.", retryable=True)
_CUT = "\ufffd"
"""What stands for a character that is not complete."""


@dataclass
class ChatRun(Run[Prompt]):
    """The turn being answered."""

    _: KW_ONLY
    sampling: Sampling
    noise: Noise
    text: Detokenizer
    stops: StopStrings
    portions_heard: int = 0
    most: int = 0
    """Tokens that may be sampled."""
    said: list[int] = field(default_factory=list)
    """The tokens of the answer, the one that ends it aside."""
    lengths: list[int] = field(default_factory=list)
    """Characters of the answer up to each of them."""
    shown: int = 0
    """Characters that have left, or were passed over."""
    released: int = 0
    """Tokens all of whose characters are among these."""
    announced: int = 0
    """Tokens that have left with their text."""


@dataclass(eq=False)
class ChatSession(Session[Prompt]):
    """One chat session. Its context is empty at the start of each unit and nothing is kept after it."""

    preprocessor: ChatPreprocessor
    _: KW_ONLY
    setup: ChatSetup
    dialogue: Dialogue
    noise: Noise
    ear: Any = None
    """The encoder's state in the clip being heard."""
    running: ChatRun | None = None

    def ready(self) -> None:
        """The session can take its first unit: there is no prompt to feed before."""
        self.stage = Stage.IDLE
        self.events.append(Ready(0))

    @property
    def run(self) -> ChatRun:
        """The turn being answered."""
        assert self.running is not None
        return self.running

    def refuse_unit(self) -> bool:
        """Whether the next unit cannot be used; one that can begins on an empty context."""
        if self.stage is Stage.PREFILL:
            return False
        assert self.queue.first is not None
        unit = self.queue.first
        self.context.restart()
        self.last_hidden = None
        self.running = ChatRun(
            unit,
            sampling=self.setup.sampling,
            noise=self.noise,
            text=Detokenizer(self.dialogue.template.decode),
            stops=StopStrings(()),
        )
        if unit.input is None:
            self.seen = []
            self.run.failure = unit.failure
            self._heard()
            return True
        self.run.text_rows = unit.input.text_tokens
        self.run.audio_rows = unit.input.audio_tokens
        self.run.vision_rows = unit.input.vision_tokens
        self.run.vision_slices = unit.input.slices
        return False

    @property
    def _upcoming(self) -> list[Passage]:
        """As `next_portion`, also before the unit is begun; nothing of one that will be refused."""
        unit, heard = self.queue.first, self.run.portions_heard if self.stage is Stage.PREFILL else 0
        portions = unit.input.portions[heard:] if unit is not None and unit.input is not None else []
        return portions[0] if portions else []

    def slices(self) -> Sequence[Any]:
        sights = (passage.view for passage in self._upcoming if isinstance(passage, Sight))
        return [piece for view in sights for piece in view.slices]

    @property
    def clip_rows(self) -> int:
        return sum(clip_rows(passage) for passage in self._upcoming)

    def next_portion(self) -> list[Passage]:
        """What is to be embedded next of the prompt."""
        return self._upcoming

    def read(self, rows: Rows) -> None:
        """The rows of that portion are to be fed."""
        self.run.portions_heard += 1
        self.to_feed = self.context.begin(rows)
        self.run.cached = self.context.found
        self.seen = []
        self.stage = Stage.PREFILL

    def taken(self) -> None:
        if self.stage is Stage.DECODE:
            self.go_on()
        elif self.run.unit.input and self.run.portions_heard == len(self.run.unit.input.portions):
            self.run.heard_at = time.monotonic()
            self.context.publish()
            self._heard()

    def go_on(self) -> None:
        """The token decided last is in the context."""

    def _heard(self) -> None:
        self.events.append(self.run.prefilled(self.context.tokens))
        self.stage = Stage.HEARD

    def begin_generate(self) -> bool:
        run = self.run
        assert run.unit.overrides is not None
        run.decided_at = time.monotonic()
        run.failure = run.failure or run.unit.rejection
        if run.failure is not None:
            self.finish(End.FAILED)
        elif self.is_cancelled:
            self.finish(End.CANCELLED)
        else:
            self._begin_answer()
        return self.stage is Stage.DECODE

    def _begin_answer(self) -> None:
        run = self.run
        assert run.unit.overrides is not None
        run.sampling = run.unit.overrides.sampling(self.setup.sampling)
        if run.unit.overrides.seed is not None:
            run.noise = Noise(run.unit.overrides.seed)
        run.stops = StopStrings(run.sampling.stop)
        run.most = min(run.sampling.max_new_tokens, self.dialogue.limit - self.context.tokens)
        self.stage = Stage.DECODE

    @property
    def is_cancelled(self) -> bool:
        """Whether the turn is to end without another word."""
        return self.queue.is_cancelled(self.run.unit)

    def foresee(self) -> Draw | None:
        return self._draw() if self.stage is Stage.DECODE and self.run.finish is None else None

    def draw(self) -> Draw | None:
        if self.is_cancelled:
            self.finish(End.CANCELLED)
            return None
        return self._draw()

    def _draw(self) -> Draw:
        run, dialogue = self.run, self.dialogue
        return drawn_by(run.sampling, run.noise, run.said, dialogue.ends, dialogue.forbidden)

    def decide(self, token: int | None) -> int | None:
        run, ends = self.run, self.dialogue.ends
        if token is None:
            self.poisoned()
            return None
        run.noise.use(UNIFORMS)
        run.sampled += 1
        if token in run.sampling.stop_token_ids:
            return self._complete(Finish.STOP)
        if token in ends and not run.sampling.ignore_eos:
            return self._complete(Finish.EOS)
        self._say(token)
        if run.stops.found:
            return self._complete(Finish.STOP)
        if run.sampled == run.most:
            return self._complete(Finish.LENGTH, token)
        return token

    def _say(self, token: int) -> None:
        """One more token of the answer; whatever text is whole now goes out."""
        run = self.run
        whole = run.text.add(token)
        run.said.append(token)
        run.lengths.append((run.lengths[-1] if run.lengths else 0) + len(whole))
        self._show(run.stops.push(whole))

    def _complete(self, finish: Finish, token: int | None = None) -> int | None:
        """No more is said. `token` was decided last and is not fed; returns it if it must be."""
        run = self.run
        run.finish = finish
        # A character whose end never came is left out.
        rest = run.stops.push(run.text.flush().rstrip(_CUT))
        if run.stops.found:
            run.finish = Finish.STOP
        self._show(rest + run.stops.flush())
        return self.close(token)

    def close(self, token: int | None) -> int | None:
        """The text of the answer is out; see `_complete`."""
        self.finish(End.TURN)
        return None

    def _show(self, text: str) -> None:
        """Text goes out, with the tokens behind it."""
        run = self.run
        is_first = run.announced == 0
        run.shown += len(text)
        while run.released < len(run.said) and run.lengths[run.released] <= run.shown:
            run.released += 1
        if is_first and self.dialogue.opens_with_space:
            text = text.lstrip()
        if text:
            ids = run.said[run.announced : run.released]
            run.announced = run.released
            visible = tuple(token for token in ids if self.dialogue.template.is_text(token))
            self.events.append(Piece(run.number, text, visible))

    def feed(self, token: int) -> None:
        self.to_feed = Rows.of_ids([token])

    def poisoned(self) -> None:
        self.to_feed = None
        self.context.restart()
        self.run.failure = POISONED
        if self.stage is Stage.PREFILL:
            self._heard()
        else:
            self.finish(End.FAILED)

    def finish(self, end: End) -> None:
        """The last word about the turn."""
        if self.run.failure is None:
            self.context.publish()
        self.conclude(self.run, end)

    def end_unit(self) -> None:
        """A turn has no end in the context: the next one begins on an empty one."""

    def finalize(self) -> None:
        self.events.append(Finalized(self.run.number, self.context.tokens, 0, self.usage))
        self.queue.close_first()
        self.running = None
        self.stage = Stage.IDLE


class ChatKind(SessionKind[ChatSession]):
    """The chats of a model that takes text and says nothing aloud."""

    def __init__(self, runtime: Runtime, dialogue: Dialogue) -> None:
        self._runtime = runtime
        self._dialogue = dialogue

    def open(self, session_id: str, slot: int, setup: ChatSetup, sink: Sink) -> ChatSession:
        dialogue = self._dialogue
        return ChatSession(
            session_id,
            slot,
            sink,
            Context(self._runtime.language, slot, Window(), dialogue.limit),
            ChatPreprocessor(dialogue, setup.system_prompt),
            setup=setup,
            dialogue=dialogue,
            noise=Noise(setup.seed),
        )

    def start(self, session: ChatSession) -> SessionFailed | None:
        session.ready()
        return None

    def hear(self, sessions: Sequence[ChatSession]) -> None:
        """Embeds the next portion of each turn's prompt."""
        for session in sessions:
            with blame(session):
                words = cast(list[Words], session.next_portion())
                session.read(Rows.join([Rows.of_ids(passage.ids) for passage in words]))
