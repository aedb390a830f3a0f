"""The reference voice of a session: from a recording to the inputs of the ear and the mouth."""

from typing import Any, TypeVar

from inference_service.interface.setups import MODELS_VOICE, VoiceReference
from inference_service.media.memo import Memo, digest
from inference_service.media.pool import Priority
from inference_service.session.kinds.components import Senses, Sound, VoicePrompts

Prepared = TypeVar("Prepared")


class ReferenceVoice:
    """The voice of one session. The media pool prepares all of it."""

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
        """Create a voice that is not prepared yet.

        `senses` is None where the language model does not hear the voice. `prompts` is None where nothing is
        spoken, or the model has only one voice. `known` holds the voices that were prepared before.
        `given` holds the parts that the session brought. Recordings of callers are cached under the `salt` of
        their tenant, the operator's own voices for everybody.
        """
        self._reference = reference
        is_recorded = given.heard is not None or given.spoken is not None
        self._heard_salt = salt if given.heard is not None else b""
        self._spoken_salt = salt if is_recorded else b""
        self._senses = senses
        self._prompts = prompts
        self._known = Memo(1) if known is None else known
        self.key = b""
        """The hash of the samples that the language model hears."""
        self.memo_key = b""
        """The key of its cache entry. The salt in it hides from other tenants which recordings are cached."""
        self.heard: list[Sound] = []
        """The voice as the language model hears it in its prompt."""
        self.spoken: Any = None
        """The mouth's prompt; None for the model's own voice."""

    @property
    def priority(self) -> Priority:
        """Return the media pool's priority for preparing the voice."""
        return Priority.SOUND if self._reference.is_unset else Priority.REST

    def begin(self) -> None:
        """Prepare the voice. Raises `UnitRefused`."""
        reference, senses, pcm = self._reference, self._senses, self._reference.heard
        if senses is not None and pcm is not None:
            self.key = digest(pcm)
            self.memo_key = digest(self._heard_salt, self.key)
            self.heard = self._known.get(self.memo_key, lambda: list(senses.sounds(pcm)))
        if self._prompts is not None:
            self.spoken = self._prompts.prompt(reference, self._spoken_salt)
