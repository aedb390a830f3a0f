"""Decoding of a chat answer's tokens: text that is shown and spoken, thoughts, and calls of tools."""

from collections.abc import Iterator, Sequence

from inference_service.interface.engine import Piece
from inference_service.models.chat_template import ChatTemplate
from inference_service.session.kinds.text import Detokenizer, StopStrings
from inference_service.tools.reader import AnswerReader, Span

_CUT = "\ufffd"
"""Stands for an incomplete character."""


class Answer:
    """The tokens of an answer so far, and how each of them was used."""

    def __init__(
        self,
        unit: int,
        template: ChatTemplate,
        stops: Sequence[str] = (),
        reader: AnswerReader | None = None,
        *,
        opens_with_space: bool = False,
    ) -> None:
        """Create an empty answer; `reader` splits it into text, thoughts and calls. Without it an answer is
        text only.
        """
        self.tokens: list[int] = []
        """The answer's tokens, without the token that ends it."""
        self.released = 0
        """Number of tokens that are known to be text, or known not to be."""
        self.announced = 0
        """Tokens that were sent: with their own text, or with that of a later token."""
        self.reader = reader
        self._unit = unit
        self._template = template
        self._text = Detokenizer(template.decode)
        self._stops = StopStrings(stops)
        self._opens_with_space = opens_with_space
        self._marks = template.marks if reader is not None else {}
        self._lengths: list[int] = []
        """Characters of the answer up to each token."""
        self._shown = 0
        """Characters that were sent or skipped."""
        self._unsaid: set[int] = set()
        """Indices of the tokens that are not text, or whose characters are not all text."""
        self._ending: set[int] = set()
        """Indices of the text tokens that end in white space that is not text."""

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string has come."""
        return self._stops.found

    @property
    def problem(self) -> str:
        """The error in a call that the model wrote; empty if there is none."""
        return self.reader.problem if self.reader is not None else ""

    @property
    def calls(self) -> int:
        """The number of complete calls."""
        return self.reader.calls if self.reader is not None else 0

    def is_said(self, place: int) -> bool:
        """Return whether a released token is to be spoken.

        It is text, except perhaps white space at its end.
        """
        return place in self._ending or self._is_text(place)

    def _is_text(self, place: int) -> bool:
        return place not in self._unsaid and self._template.is_text(self.tokens[place])

    def add(self, token: int) -> Iterator[Piece]:
        """Append a token; yield the text that is complete now."""
        mark = self._marks.get(token)
        whole = self._text.add(token) if mark is None else self._text.flush().rstrip(_CUT) + mark
        self.tokens.append(token)
        self._lengths.append((self._lengths[-1] if self._lengths else 0) + len(whole))
        if self.reader is None:
            yield from self._show(self._stops.push(whole))
        else:
            yield from self._sort(self.reader.push(whole))

    def end(self, *, is_cut: bool) -> Iterator[Piece]:
        """End the answer without its incomplete character. `is_cut`: the model had more to write."""
        rest = self._text.flush().rstrip(_CUT)
        if self.reader is not None:
            yield from self._sort([*self.reader.push(rest), *self.reader.end(is_cut=is_cut)])
            rest = ""
        yield from self._show(self._stops.push(rest) + self._stops.flush())

    def _sort(self, spans: Sequence[Span]) -> Iterator[Piece]:
        """Yield text through the stop strings, and everything else at once."""
        for span in spans:
            if self.is_stopped:
                return
            if span.text:
                yield from self._show(self._stops.push(span.text))
                continue
            yield from self._show(self._stops.flush())
            self._pass_over(span.length)
            if span.thinking or span.call is not None:
                yield Piece(self._unit, thinking=span.thinking, call=span.call)

    def _show(self, text: str) -> Iterator[Piece]:
        """Yield text, with the tokens that it came from."""
        is_first = self.announced == 0
        self._shown += len(text)
        while self.released < len(self.tokens) and self._lengths[self.released] <= self._shown:
            self.released += 1
        if is_first and self._opens_with_space:
            text = text.lstrip()
        if text:
            places = range(self.announced, self.released)
            self.announced = self.released
            yield Piece(self._unit, text, tuple(self.tokens[i] for i in places if self._is_text(i)))

    def _pass_over(self, length: int) -> None:
        """Skip characters, and every token that holds one of them."""
        if length and self._ends_in_space():
            self._ending.add(self.released)
        self._shown += length
        while self.released < len(self.tokens) and self._lengths[self.released] <= self._shown:
            self._unsaid.add(self.released)
            self.released += 1
        begin = self._lengths[self.released - 1] if self.released else 0
        if length and begin < self._shown:
            self._unsaid.add(self.released)

    def _ends_in_space(self) -> bool:
        """Return whether a token was shown in part, and only white space of it is left."""
        place = self.released
        begin = self._lengths[place - 1] if place else 0
        if place in self._unsaid or not begin < self._shown:
            return False
        left = self._lengths[place] - self._shown
        return self._template.decode([self.tokens[place]])[-left:].isspace()
