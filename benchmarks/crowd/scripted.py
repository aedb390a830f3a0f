"""Sessions whose output is the text of workload W instead of the model's own."""

from typing import Any

from benchmarks.crowd.workload import CYCLE, SAYS, TEXT, place, speaks
from inference_service.engine.batch.speech import SpeechJob
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.interface.engine import Sink
from inference_service.interface.setups import DuplexSetup
from inference_service.models.tokenizer import Tokenizer
from inference_service.session.kinds.duplex import DuplexSession
from inference_service.session.kinds.duplex_kind import DuplexKind


def tokens(tokenizer: Tokenizer, place: int, step: int) -> int:
    """Return the scripted token of decode step `step`, from 0, in the unit at `place` in its cycle."""
    special = tokenizer.special
    if not speaks(place):
        return special.listen
    if step == 0:
        return special.tts_bos
    if step <= SAYS:
        words = tokenizer.encode(TEXT)
        return words[(step - 1) % len(words)]
    ends_turn = place == CYCLE - 1 and step == SAYS + 1
    return special.turn_eos if ends_turn else special.chunk_eos


class ScriptedSession(DuplexSession):
    """A session with the script's tokens in place of sampled ones, and a full second of speech per unit."""

    def _within_turn_bound(self, token: int) -> int:
        return tokens(self.tokenizer, place(self.id, self._run.number), self._run.steps)

    def speech_job(self) -> SpeechJob | None:
        job = super().speech_job()
        if job is not None:
            job.may_be_short = False
        return job


class ScriptedKind(DuplexKind):
    """The kind that opens scripted sessions."""

    def open(self, session_id: str, slot: int, setup: DuplexSetup, sink: Sink) -> DuplexSession:
        session: Any = super().open(session_id, slot, setup, sink)
        session.__class__ = ScriptedSession
        return session  # type: ignore[no-any-return]


def script(runtime: DuplexRuntime) -> None:
    """Make every later full-duplex session of this runtime a scripted one."""
    runtime.kinds[DuplexSetup] = ScriptedKind(runtime, runtime.components, runtime.look)
