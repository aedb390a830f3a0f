"""The prompt before the first frame of a conversation.

Moshi begins with one row of special initial tokens. PersonaPlex reads frames of a prompt first: a voice, half
a second of silence, the text of its role, and half a second of silence. Meanwhile the user's stream is a tone
of 440 Hz. See `LMGen.step_system_prompts` in NVIDIA's personaplex.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from inference_service.checkpoints.moshi.folder import MoshiCheckpoint
from inference_service.device.rows import Rows
from inference_service.device.transfer import upload
from inference_service.media.memo import digest
from inference_service.models.moshi.model import Codes, Frame, no_codes, rows_of

PAUSE_S = 0.5
_TAG = "<system>"


@dataclass(frozen=True)
class Prompt:
    """The rows of a prompt, and the tokens for the first row after them."""

    rows: Rows
    late: Codes
    """All codes of the model's own stream except the first."""
    heard: Codes
    """The user's codes in the last frame."""


class PromptBuilder:
    """Makes the prompts of one model."""

    def __init__(self, checkpoint: MoshiCheckpoint, frame_s: float) -> None:
        self._checkpoint = checkpoint
        self._pause = int(PAUSE_S / frame_s)
        model = checkpoint.model
        nothing = no_codes(model.codes, model.begin_code)
        self._begin = Frame(model.begin_text, nothing, nothing)

    def encode(self, role: str) -> list[int]:
        """Return the ids of the text that describes the model's role."""
        text = role.strip()
        if not text or not self._checkpoint.reads_prompts:
            return []
        is_tagged = text.startswith(_TAG) and text.endswith(_TAG) and len(text) > len(_TAG)
        return self._checkpoint.tokenizer.encode(text if is_tagged else f"{_TAG} {text} {_TAG}")

    def length(self, role: list[int], voice_id: str) -> int:
        """Return the number of rows of the prompt; `role` holds the ids of its text."""
        if not self._checkpoint.reads_prompts:
            return 1
        voice = self._checkpoint.voices[self.voice(voice_id)]
        return len(voice.rows) + 1 + 2 * self._pause + len(role)

    def voice(self, voice_id: str) -> str:
        """Return the name of a voice; the first one is the default."""
        return voice_id or next(iter(self._checkpoint.voices))

    def build(self, role: list[int], voice_id: str) -> Prompt:
        """Return the prompt of a conversation."""
        model = self._checkpoint.model
        if not self._checkpoint.reads_prompts:
            first = self._begin
            tokens = np.array([[first.text, *first.said, *first.heard]], np.int64)
            return Prompt(Rows.of(self._embedded(tokens), digest("moshi")), first.said[1:], first.heard)
        name, codes = self.voice(voice_id), model.codes
        voice = self._checkpoint.voices[name]
        late = Frame(0, voice.late[1 : 1 + codes], voice.late[1 + codes :])
        pad = model.words.pad
        texts = [*[pad] * self._pause, *role, *[pad] * self._pause]
        frames = [Frame(text, model.silence, model.sine) for text in texts]
        tokens = np.concatenate([np.array([voice.last], np.int64), rows_of(frames, late)])
        made = torch.cat([voice.rows.to(model.head.weight), self._embedded(tokens)])
        return Prompt(Rows.of(made, digest(name, tokens.tobytes())), model.silence[1:], model.sine)

    def _embedded(self, tokens: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Tensor:
        model = self._checkpoint.model
        rows: Tensor = model.embeddings(upload(model.device, tokens)[0])
        return rows
