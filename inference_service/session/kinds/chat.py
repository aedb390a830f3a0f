"""A chat session inside the engine: each unit brings the whole conversation, and is answered."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, cast

from inference_service.device.rows import Rows
from inference_service.engine.batch.context import Context
from inference_service.engine.batch.draw import UNIFORMS, Draw, drawn_by
from inference_service.engine.batch.noise import Noise
from inference_service.engine.guard import blame
from inference_service.engine.runtime import Runtime
from inference_service.interface.engine import (
    End,
    Failure,
    Finalized,
    Finish,
    Piece,
    Ready,
    SessionFailed,
    Sink,
)
from inference_service.interface.setups import ChatSetup, Sampling, Window
from inference_service.session.base.session import (
    Run,
    Session,
    SessionKind,
    Stage,
)
from inference_service.session.kinds.answer import Answer
from inference_service.session.kinds.prompt import (
    ChatPreprocessor,
    Dialogue,
    Passage,
    Prompt,
    PromptPicture,
    Words,
    clip_rows,
    shared_beginnings,
)
from inference_service.tools.grammar import Constraint, Mask

POISONED = Failure("INFERENCE_FAILED", "The model gave no usable numbers for this turn.", retryable=True)


@dataclass
class ChatRun(Run[Prompt]):
    """The running turn of a chat."""

    _: KW_ONLY
    sampling: Sampling
    noise: Noise
    answer: Answer
    portions_heard: int = 0
    most: int = 0
    """Limit of sampled tokens."""
    constraint: Constraint | None = None
    """The constraint on the form of the answer."""
    mask: Mask | None = None
    """The mask of tokens that may come next; None while it is being computed."""
    is_single: bool = False
    """Whether the answer ends with its first call."""

    def constrain(self, mask: Mask) -> None:
        """Set the mask of tokens that may come next."""
        self.mask = mask


@dataclass(eq=False)
class ChatSession(Session[Prompt]):
    """One chat session. Its context is empty at the start of each unit, and is dropped after it."""

    preprocessor: ChatPreprocessor
    _: KW_ONLY
    setup: ChatSetup
    dialogue: Dialogue
    noise: Noise
    ear: Any = None
    """State of the encoder within the current clip."""
    running: ChatRun | None = None

    def ready(self) -> None:
        """Accept units: a chat has no prompt to feed first."""
        self.stage = Stage.IDLE
        self.events.append(Ready(0))

    @property
    def run(self) -> ChatRun:
        """The running turn."""
        assert self.running is not None
        return self.running

    def refuse_unit(self) -> bool:
        """Return whether the next unit cannot be used; if it can, it begins on an empty context."""
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
            answer=Answer(unit.number, self.dialogue.template),
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
        self.run.ignored_fields = unit.input.ignored_fields
        return False

    @property
    def _upcoming(self) -> list[Passage]:
        """Return `next_portion`, also before the unit is begun; empty for a unit that will be refused."""
        unit, heard = self.queue.first, self.run.portions_heard if self.stage is Stage.PREFILL else 0
        portions = unit.input.portions[heard:] if unit is not None and unit.input is not None else []
        return portions[0] if portions else []

    def slices(self) -> Sequence[Any]:
        sights = (passage.view for passage in self._upcoming if isinstance(passage, PromptPicture))
        return [piece for view in sights for piece in view.slices]

    @property
    def clip_rows(self) -> int:
        return sum(clip_rows(passage) for passage in self._upcoming)

    def next_portion(self) -> list[Passage]:
        """Return the next portion of the prompt to embed."""
        return self._upcoming

    def read(self, rows: Rows) -> None:
        """Queue the rows of a portion."""
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
        """Continue once the last decided token is in the context; spoken chats speak here."""

    def _heard(self) -> None:
        self.events.append(self.run.prefilled(self.context.tokens))
        self.stage = Stage.HEARD

    @property
    def wants_decision(self) -> bool:
        waits = self.stage is Stage.DECODE and self.run.constraint is not None and self.run.mask is None
        return super().wants_decision and not waits

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
        prompt = run.unit.input
        assert prompt is not None
        room = self.dialogue.limit - self.context.tokens + len(prompt.begun)
        run.most = min(run.sampling.max_new_tokens, room)
        run.answer = Answer(
            run.number,
            self.dialogue.template,
            run.sampling.stop,
            prompt.reader(self.dialogue.template),
            opens_with_space=self.dialogue.opens_with_space,
        )
        run.is_single = not prompt.tools.are_parallel
        run.constraint = prompt.constraint
        run.mask = prompt.constraint.first if prompt.constraint else None
        self.stage = Stage.DECODE
        if prompt.begun:
            self._take_up(prompt.begun)

    def _take_up(self, begun: tuple[int, ...]) -> None:
        """Continue an answer from the tokens that another session has sampled and sent."""
        run = self.run
        run.noise.use(len(begun) * UNIFORMS)
        run.sampled = len(begun)
        for token in begun:
            for _ in run.answer.add(token):
                pass  # the other session has sent this piece
        if run.answer.is_stopped:
            self._complete(Finish.STOP)
        elif run.answer.problem:
            self._fail_call()
        elif run.is_single and run.answer.calls:
            self._complete(Finish.EOS)
        elif run.sampled >= run.most:
            self._complete(Finish.LENGTH)
        elif (constraint := run.constraint) is not None:
            run.mask = None
            self.beside(lambda: [constraint.after(token) for token in begun][-1], run.constrain)

    @property
    def is_cancelled(self) -> bool:
        """Whether the turn must end without further words."""
        return self.queue.is_cancelled(self.run.unit)

    def foresee(self) -> Draw | None:
        run = self.run
        is_known = run.constraint is None or (run.mask is not None and not run.mask.is_over)
        return self._draw() if self.stage is Stage.DECODE and run.finish is None and is_known else None

    def draw(self) -> Draw | None:
        if self.is_cancelled:
            self.finish(End.CANCELLED)
            return None
        mask = self.run.mask
        if mask is not None and mask.problem:
            problem = f"turn.tools cannot be enforced: {mask.problem}."
            self._fail(Failure("PARAMS_INVALID", problem, "turn.tools"))
            return None
        if mask is not None and mask.is_over:
            self._complete(Finish.EOS)
            return None
        return self._draw()

    def _draw(self) -> Draw:
        run, dialogue = self.run, self.dialogue
        allowed = run.mask.words if run.mask else None
        return drawn_by(
            run.sampling, run.noise, run.answer.tokens, dialogue.ends, dialogue.forbidden, allowed
        )

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
        self._tell(token)
        if run.answer.is_stopped:
            return self._complete(Finish.STOP)
        if run.answer.problem:
            self._fail_call()
            return None
        if run.is_single and run.answer.calls:
            return self._complete(Finish.EOS)
        if run.sampled == run.most:
            return self._complete(Finish.LENGTH, token)
        if run.constraint is not None:
            run.mask = None
            self.beside(partial(run.constraint.after, token), run.constrain)
        return token

    def _tell(self, token: int) -> None:
        """Send the text that a token of the answer completes, and the token itself if records are kept."""
        pieces, prompt = list(self.run.answer.add(token)), self.run.unit.input
        if self.setup.records and prompt is not None and not prompt.speaks:
            last = pieces.pop() if pieces else Piece(self.run.number)
            pieces.append(replace(last, sampled=(token,)))
        self.events += pieces

    def _complete(self, finish: Finish, token: int | None = None) -> int | None:
        """Complete the answer. `token` was decided last and is not fed; return it if it must be."""
        run = self.run
        run.finish = finish
        self.events += run.answer.end(is_cut=finish is not Finish.EOS)
        if run.answer.problem:
            self._fail_call()
            return None
        if run.answer.is_stopped:
            run.finish = Finish.STOP
        return self.close(token)

    def _fail_call(self) -> None:
        problem = f"The model wrote a call that cannot be read: {self.run.answer.problem}."
        self._fail(Failure("INFERENCE_FAILED", problem, retryable=True))

    def _fail(self, failure: Failure) -> None:
        """Fail the turn because of the answer or its constraint; the session goes on."""
        self.run.finish, self.run.failure = None, failure
        self.finish(End.FAILED)

    def close(self, token: int | None) -> int | None:
        """End the text of the answer; return `token` if it must be fed, else None."""
        self.finish(End.TURN)
        return None

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
        """Report the end of the turn."""
        if self.run.failure is None:
            self.context.publish()
        self.conclude(self.run, end)

    def end_unit(self) -> None:
        """End the turn without an end mark in the context: the next one begins on an empty context."""

    def finalize(self) -> None:
        self.events.append(Finalized(self.run.number, self.context.tokens, 0, self.usage))
        self.queue.close_first()
        self.running = None
        self.stage = Stage.IDLE


class ChatKind(SessionKind[ChatSession]):
    """The chat kind of a model that takes only text and does not speak."""

    def __init__(self, runtime: Runtime, dialogue: Dialogue) -> None:
        self._runtime = runtime
        self._dialogue = dialogue

    def open(self, session_id: str, slot: int, setup: ChatSetup, sink: Sink) -> ChatSession:
        dialogue = self._dialogue
        return ChatSession(
            session_id,
            slot,
            sink,
            Context(self._runtime.language, slot, Window(), dialogue.limit, setup.tenant),
            ChatPreprocessor(dialogue, setup.system_prompt),
            setup=setup,
            dialogue=dialogue,
            noise=Noise(setup.seed),
        )

    def rows_of(self, system_prompt: str) -> Iterator[Rows]:
        return shared_beginnings(self._dialogue.template, system_prompt)

    def start(self, session: ChatSession) -> SessionFailed | None:
        session.ready()
        return None

    def hear(self, sessions: Sequence[ChatSession]) -> None:
        """Embed the next portion of each turn's prompt."""
        for session in sessions:
            with blame(session):
                words = cast(list[Words], session.next_portion())
                session.read(Rows.join([Rows.of_ids(passage.ids) for passage in words]))
