"""The session kind of Moshi, which encodes the next frames of all conversations together."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from inference_service.checkpoints.moshi.folder import MoshiCheckpoint
from inference_service.device.rows import Rows
from inference_service.device.transfer import upload
from inference_service.engine.batch.decoder import PackedDecoder
from inference_service.engine.batch.rolling import RollingContext
from inference_service.engine.guard import blame
from inference_service.engine.runtime import Runtime
from inference_service.families.moshi.draws import FrameDraws
from inference_service.families.moshi.frame_run import Heard
from inference_service.families.moshi.framing import Framing
from inference_service.families.moshi.monologue import HOLD, Monologue
from inference_service.families.moshi.prompt import PromptBuilder
from inference_service.families.moshi.rewind import MOST, PastFrame
from inference_service.families.moshi.session import FrameSession, OwnTokens
from inference_service.interface.engine import SessionFailed, Sink
from inference_service.interface.setups import (
    Content,
    DuplexSetup,
    UnitInput,
    Window,
)
from inference_service.media.pool import Priority
from inference_service.session.base.session import Preprocessor, SessionKind
from inference_service.session.kinds.text import Detokenizer


class FramePreprocessor(Preprocessor[Heard]):
    """Cuts units into frames, and tokenizes the prompt's text."""

    def __init__(self, framing: Framing, prompts: PromptBuilder, role: str) -> None:
        """Create the preprocessor; `role` is the text of the prompt."""
        self._framing = framing
        self._prompts = prompts
        self._role = role
        self._ids: list[int] | None = None

    def priority(self, content: Content | None) -> Priority | None:
        return None

    @property
    def role(self) -> list[int]:
        """Return the ids of the prompt's text."""
        if self._ids is None:
            self._ids = self._prompts.encode(self._role)
        return self._ids

    def begin(self) -> None:
        assert self.role is not None

    def prepare(self, content: Content) -> Heard:
        if not isinstance(content, UnitInput) or content.pcm is None:
            raise TypeError("A conversation with Moshi takes sound.")
        return self._framing.feed(content.pcm)


class FrameKind(SessionKind[FrameSession]):
    """The conversations of one model."""

    def __init__(
        self, runtime: Runtime, checkpoint: MoshiCheckpoint, ear: PackedDecoder, mouth: PackedDecoder
    ) -> None:
        self._runtime = runtime
        self._checkpoint = checkpoint
        self._model = checkpoint.model
        self._ear, self._mouth = ear, mouth
        codec = self._model.codec
        self._frame_s = codec.samples / codec.sample_rate_hz
        self._prompts = PromptBuilder(checkpoint, self._frame_s)

    def open(self, session_id: str, slot: int, setup: DuplexSetup, sink: Sink) -> FrameSession:
        model, codec = self._model, self._model.codec
        reach, window = self._runtime.info.context_limit, int(codec.network.config.sliding_window)
        nothing = (model.begin_code,) * model.codes

        def context(decoder: PackedDecoder, reach: int, spare: int) -> RollingContext:
            return RollingContext(decoder, slot, Window(), reach, setup.tenant, reach=reach, spare=spare)

        return FrameSession(
            session_id,
            slot,
            sink,
            context(self._runtime.language, reach, MOST),
            FramePreprocessor(
                Framing(self._runtime.info.format_of(setup), codec.samples, codec.sample_rate_hz),
                self._prompts,
                setup.system_prompt,
            ),
            setup=setup,
            monologue=Monologue(model.words, Detokenizer(self._checkpoint.tokenizer.decode)),
            draws=FrameDraws(setup.seed),
            silence=model.silence,
            frame_s=self._frame_s,
            silent_rows=self._silent_rows,
            ear=context(self._ear, window, codec.rows),
            ear_state=codec.ear_state,
            mouth=context(self._mouth, window, codec.rows),
            mouth_state=codec.mouth_state,
            unspoken=codec.mouth_state,
            heard=torch.tensor(nothing),
            said=OwnTokens(model.begin_text, model.begin_code, nothing[1:]),
        )

    def start(self, session: FrameSession) -> SessionFailed | None:
        assert isinstance(session.preprocessor, FramePreprocessor)
        role, voice_id = session.preprocessor.role, session.setup.voice.voice_id
        length, most = self._prompts.length(role, voice_id), self._runtime.info.context_limit - HOLD
        if length > most:
            return SessionFailed(
                "CONFIG_INVALID", f"has {length} tokens with its voice; at most {most} leave room for frames"
            )
        prompt = self._prompts.build(role, voice_id)
        session.to_feed = session.context.begin(prompt.rows)
        session.said = OwnTokens(self._model.words.pad, self._model.silence[0], prompt.late)
        (session.heard,) = upload(self._runtime.device, np.array(prompt.heard, np.int64))
        return None

    def hear(self, sessions: Sequence[FrameSession]) -> None:
        """Encode the next frame of each session, all in one pass of the codec, and queue their rows."""
        codec, device = self._model.codec, self._runtime.device
        own = np.array([[it.said.text, it.said.first, *it.said.late] for it in sessions], np.int64)
        pcm = np.stack([session.next_frame().numpy() for session in sessions])
        sound, tokens = upload(device, pcm, own)
        split = codec.ear_split
        rows, begun = codec.hear(sound, [it.ear_state[:split] for it in sessions])
        segments = [it.ear.segment(Rows.of(row)) for it, row in zip(sessions, rows, strict=True)]
        written, ended = codec.write(
            torch.stack(self._ear.forward(segments)), [it.ear_state[split:] for it in sessions]
        )
        beside = torch.cat([written[:, :1], torch.stack([it.heard for it in sessions])[:, 1:]], dim=1)
        embedded = self._model.embeddings(torch.cat([tokens, beside], dim=1)).split(1)
        states = map(_joined, begun, ended)
        for session, row, heard, late, state in zip(sessions, embedded, written, beside, states, strict=True):
            with blame(session):
                session.hear(row, heard, late, state, codec.rows)

    def _silent_rows(self, frames: Sequence[PastFrame]) -> Tensor:
        model = self._model
        own = [[model.words.pad, model.silence[0], *model.silence[1:]] for _ in frames]
        own[0][2:] = frames[0].late
        (tokens,) = upload(self._runtime.device, np.array(own, np.int64))
        rows: Tensor = model.embeddings(torch.cat([tokens, torch.stack([it.heard for it in frames])], dim=1))
        return rows


def _joined(one: tuple[Tensor | None, ...], other: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    return *one, *other
