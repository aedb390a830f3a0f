"""The random numbers of a conversation: for its text, and for the codes of its voice."""

from math import inf, log

from inference_service.engine.batch.draw import COLDEST, UNIFORMS, Draw
from inference_service.engine.batch.noise import SPEECH, Noise
from inference_service.families.moshi.monologue import Monologue
from inference_service.interface.setups import DuplexSettings


class FrameDraws:
    """Two streams of random numbers, for text and for codes; a unit with a seed has one stream for both."""

    def __init__(self, seed: int) -> None:
        self.of_unit: Noise | None = None
        self._text = Noise(seed)
        self._voice = Noise(seed, SPEECH)

    def text(self, settings: DuplexSettings, monologue: Monologue) -> Draw:
        """Return the draw of the next frame's token."""
        scale = settings.listen_prob_scale
        return Draw(
            0.0 if settings.greedy else settings.temperature,
            settings.top_k,
            settings.top_p,
            self._of(self._text).ahead(UNIFORMS),
            recent=monologue.recent,
            repetition_penalty=settings.text_repetition_penalty,
            favoured=monologue.words.pad,
            bias=log(scale) if scale > 0 else -inf,
        )

    def text_drawn(self) -> None:
        """Use up the numbers of one token."""
        self._of(self._text).use(UNIFORMS)

    def codes(self, settings: DuplexSettings, count: int) -> tuple[float, list[float]]:
        """Return the temperature of a frame's codes, and a random number for each."""
        is_greedy = settings.greedy or settings.tts_temperature < COLDEST
        return 0.0 if is_greedy else settings.tts_temperature, self._of(self._voice).ahead(count)

    def codes_drawn(self, count: int) -> None:
        """Use up the numbers of a frame's codes."""
        self._of(self._voice).use(count)

    def _of(self, usual: Noise) -> Noise:
        return usual if self.of_unit is None else self.of_unit
