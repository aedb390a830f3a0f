"""A chat of the vLLM engine: each unit brings the whole conversation, and is answered by one request."""

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass

from inference_service.engine_vllm.generator import Generator, Request, seed_of
from inference_service.engine_vllm.prompts import Expand, MediaPrompt, VllmPreprocessor
from inference_service.engine_vllm.session import VllmSession
from inference_service.interface.engine import (
    Deliver,
    End,
    Event,
    Failure,
    Finish,
    Piece,
    Ready,
    Sink,
)
from inference_service.interface.setups import ChatSetup, Sampling
from inference_service.session.base.session import QueuedUnit, Run
from inference_service.session.kinds.answer import Answer
from inference_service.session.kinds.prompt import Dialogue, Prompt, Words


@dataclass
class TurnRun(Run[Prompt]):
    """The running turn."""

    _: KW_ONLY
    sampling: Sampling
    answer: Answer
    most: int = 0
    """Limit of sampled tokens."""
    is_single: bool = False
    """Whether the answer ends with its first call."""


class VllmChat(VllmSession[Prompt]):
    """One CHAT session. It keeps nothing of a unit."""

    def __init__(
        self,
        session_id: str,
        sink: Sink,
        setup: ChatSetup,
        dialogue: Dialogue,
        generator: Generator,
        deliver: Deliver,
        expand: Expand,
    ) -> None:
        preprocessor = VllmPreprocessor(dialogue, setup.system_prompt, generator, setup.tenant, expand)
        super().__init__(session_id, sink, preprocessor, generator, deliver)
        self._setup = setup
        self._dialogue = dialogue
        self._ids: tuple[int, ...] = ()
        self._run: TurnRun | None = None

    @property
    def run(self) -> TurnRun:
        assert self._run is not None
        return self._run

    @property
    def context_tokens(self) -> int:
        said = self._run.sampled - 1 if self._run is not None and self._run.sampled else 0
        return len(self._ids) + said

    def begin(self) -> Event:
        return Ready(0)

    def read(self, unit: QueuedUnit[Prompt]) -> None:
        self._ids = ()
        self._run = run = TurnRun(
            unit, sampling=self._setup.sampling, answer=Answer(unit.number, self._dialogue.template)
        )
        run.failure = unit.failure
        if unit.input is None:
            return
        self._ids = tuple(_ids(unit.input))
        run.text_rows = unit.input.text_tokens
        run.audio_rows, run.vision_rows = unit.input.audio_tokens, unit.input.vision_tokens
        run.vision_slices = unit.input.slices
        run.ignored_fields = unit.input.ignored_fields

    def refused(self) -> End | None:
        run = self.run
        run.failure = run.failure or run.unit.rejection
        if run.failure is not None:
            return End.FAILED
        if self.is_cancelled:
            return End.CANCELLED
        prompt = run.unit.input
        assert run.unit.overrides is not None
        assert prompt is not None
        run.sampling = run.unit.overrides.sampling(self._setup.sampling)
        run.most = min(run.sampling.max_new_tokens, self._dialogue.limit - len(self._ids))
        template = self._dialogue.template
        run.answer = Answer(run.number, template, run.sampling.stop, prompt.reader(template))
        run.is_single = not prompt.tools.are_parallel
        return None

    def request(self) -> Request:
        run = self.run
        assert run.unit.overrides is not None
        own, prompt = run.unit.overrides.seed, run.unit.input
        return Request(
            self._ids,
            run.most,
            run.sampling,
            self._dialogue.ends,
            seed_of(self._setup.seed, run.number) if own is None else seed_of(own, 0),
            self._setup.tenant,
            prompt.payload if isinstance(prompt, MediaPrompt) else None,
        )

    def decide(self, token: int, tell: Callable[[Event], None]) -> End | None:
        run = self.run
        if token in run.sampling.stop_token_ids:
            return self._complete(Finish.STOP, tell)
        if token in self._dialogue.ends and not run.sampling.ignore_eos:
            return self._complete(Finish.EOS, tell)
        _tell_all(run.answer.add(token), tell)
        if run.answer.is_stopped:
            return self._complete(Finish.STOP, tell)
        if run.answer.problem:
            return self._fail_call()
        if run.is_single and run.answer.calls:
            return self._complete(Finish.EOS, tell)
        if run.sampled == run.most:
            return self._complete(Finish.LENGTH, tell)
        return None

    def _complete(self, finish: Finish, tell: Callable[[Event], None]) -> End:
        run = self.run
        _tell_all(run.answer.end(is_cut=finish is not Finish.EOS), tell)
        if run.answer.problem:
            return self._fail_call()
        run.finish = Finish.STOP if run.answer.is_stopped else finish
        return End.TURN

    def _fail_call(self) -> End:
        problem = f"The model wrote a call that cannot be read: {self.run.answer.problem}."
        self.run.failure = Failure("INFERENCE_FAILED", problem, retryable=True)
        return End.FAILED

    def close_unit(self) -> int:
        return 0


def _tell_all(pieces: Iterator[Piece], tell: Callable[[Event], None]) -> None:
    for piece in pieces:
        tell(piece)


def _ids(prompt: Prompt) -> Iterator[int]:
    for portion in prompt.portions:
        for passage in portion:
            assert isinstance(passage, Words)
            yield from passage.ids
