"""The voice that a session brings, on its way from a recording to what ear and mouth take of it."""

from typing import Any, TypeVar

from inference_service.interface.setups import MODELS_VOICE, VoiceReference
from inference_service.media.memo import Memo, digest
from inference_service.media.pool import Priority
from inference_service.session.kinds.components import Senses, Sound, VoicePrompts

Prepared = TypeVar("Prepared")


class ReferenceVoice:
    """The voice of one session. All of it is done in the media pool."""

    def __init__(
        self,
        reference: VoiceReference,
        senses: Senses | None,
        prompts: VoicePrompts | None,
        known: Memo[list[Sound]] | None = None,
        *,
        given: VoiceReference = MODELS_VOICE,
        salt: bytes = b"",
    ) -> None:
        """`senses` is None where the language model does not hear it, and `prompts` where nothing is said
        aloud or there is one voice only. `known` are voices that were heard before. `given` is what the
        session itself brought of the voice: recordings that callers bring are cached under the `salt` of
        their tenant, and the operator's own voices for everybody.
        """
        self._reference = reference
        is_recorded = given.heard is not None or given.spoken is not None
        self._heard_salt = salt if given.heard is not None else b""
        self._spoken_salt = salt if is_recorded else b""
        self._senses = senses
        self._prompts = prompts
        self._known = Memo(1) if known is None else known
        self.key = b""
        """Of what the language model hears: the hash of its samples."""
        self.memo_key = b""
        """The key of what is remembered of it: other tenants, who know the samples, learn nothing by it."""
        self.heard: list[Sound] = []
        """The voice as the language model hears it in its prompt."""
        self.spoken: Any = None
        """What the mouth needs of it; None for the model's own voice."""

    @property
    def priority(self) -> Priority:
        """What it is to prepare it."""
        return Priority.SOUND if self._reference.is_unset else Priority.REST

    def begin(self) -> None:
        """Do it. Raises `UnitRefused`."""
        reference, senses, pcm = self._reference, self._senses, self._reference.heard
        if senses is not None and pcm is not None:
            self.key = digest(pcm)
            self.memo_key = digest(self._heard_salt, self.key)
            self.heard = self._known.get(self.memo_key, lambda: list(senses.sounds(pcm)))
        if self._prompts is not None:
            self.spoken = self._prompts.prompt(reference, self._spoken_salt)
