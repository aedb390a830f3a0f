"""Incremental parsing of an answer into thoughts, text, and tool calls."""

import json
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from inference_service.interface.engine import CallDelta
from inference_service.tools.syntax import CallSyntax

THINK, END_THINK = "<think>", "</think>"
_OUTSIDE = frozenset('{}[],:"0123456789+-.eEtrufalsn \t\r\n')
"""Characters that may stand in JSON outside of strings."""


@dataclass(frozen=True)
class Span:
    """A stretch of an answer, of `length` characters as the model wrote them.

    In a span of the answer's text, `text` holds all of these characters. In a span of a thought, a call or
    dropped characters, `text` is empty.
    """

    length: int
    text: str = ""
    thinking: str = ""
    call: CallDelta | None = None


class Thinking(Enum):
    """Modes of thinking."""

    NO = auto()
    """The model does not think: marks of a thought are read as text."""
    MAY = auto()
    BEGUN = auto()
    """The prompt has opened the thought."""


class _State(Enum):
    BEGIN = auto()
    """Only white space has come."""
    THINKING = auto()
    THOUGHT = auto()
    """White space after a thought."""
    START = auto()
    """A bare call may begin here."""
    TEXT = auto()
    HEAD = auto()
    """Within a call, before its arguments."""
    ARGUMENTS = auto()
    TAIL = auto()
    """After the arguments of a call."""
    WHOLE = auto()
    """Within a call that is read when it is complete, because it begins unlike others."""
    CLOSE = auto()
    """After a call, before its end marker."""


class AnswerReader:
    """An incremental parser of a model's output, which comes in pieces of any length.

    A malformed call, or one of a tool that was not offered, is a `problem`: nothing follows it.
    """

    def __init__(
        self,
        syntax: CallSyntax | None,
        offered: Collection[str] = (),
        thinking: Thinking = Thinking.NO,
        new_id: Callable[[], str] = lambda: "",
    ) -> None:
        """Read an answer; without `syntax` there are no calls. `offered` are names; `new_id` makes the ids
        of calls."""
        self.problem = ""
        """The error in a call; empty if there is none."""
        self.calls = 0
        """The number of complete calls."""
        self._syntax = syntax
        self._offered = offered
        self._new_id = new_id
        self._waiting = ""
        self._object = ObjectScan()
        self._arguments: list[str] = []
        self._index = -1
        self._is_bare = False
        """Whether the current call may still turn out to be text."""
        self._skips_space = thinking is Thinking.BEGUN
        """Whether the next white space is dropped."""
        self._head = _head(syntax.arguments) if syntax else None
        self._state = {
            Thinking.NO: self._first,
            Thinking.MAY: _State.BEGIN,
            Thinking.BEGUN: _State.THINKING,
        }[thinking]
        self._steps: dict[_State, Callable[[], Iterator[Span]]] = {
            _State.BEGIN: self._begin,
            _State.THINKING: self._think,
            _State.THOUGHT: self._thought,
            _State.START: self._start,
            _State.TEXT: self._text,
            _State.HEAD: self._read_head,
            _State.ARGUMENTS: self._read_arguments,
            _State.TAIL: self._read_tail,
            _State.WHOLE: self._read_whole,
            _State.CLOSE: self._close,
        }

    @property
    def _first(self) -> _State:
        """The state in which the answer begins after any thought."""
        return _State.START if self._syntax and self._syntax.is_bare else _State.TEXT

    def push(self, text: str) -> list[Span]:
        """Return the spans that are certain now."""
        self._waiting += text
        spans: list[Span] = []
        while self._waiting and not self.problem:
            before = self._state, len(self._waiting)
            spans += self._steps[self._state]()
            if before == (self._state, len(self._waiting)):
                break
        return spans

    def end(self, *, is_cut: bool) -> list[Span]:
        """Return the waiting spans, because no more text follows. `is_cut`: the model had more to write."""
        rest, self._waiting = "" if self.problem else self._waiting, ""
        match self._state:
            case _State.HEAD | _State.ARGUMENTS | _State.TAIL | _State.WHOLE if not self._is_bare:
                if not is_cut:
                    self.problem = self.problem or "it does not end"
                return []
            case _State.THINKING:
                return [Span(len(rest), thinking=rest.rstrip())] if rest else []
            case _State.THOUGHT | _State.CLOSE:
                return []
        return [_said(rest)] if rest else []

    # ------------------------------------------------------------------------------------------- thinking

    def _begin(self) -> Iterator[Span]:
        written = self._waiting.lstrip()
        if written.startswith(THINK):
            yield self._drop(len(self._waiting) - len(written) + len(THINK))
            self._state, self._skips_space = _State.THINKING, True
        elif not THINK.startswith(written):
            self._state = self._first

    def _think(self) -> Iterator[Span]:
        """Parse a thought, and drop the white space round it."""
        yield from self._skip()
        at = self._waiting.find(END_THINK)
        thought = self._waiting[: self._free(END_THINK) if at < 0 else at].rstrip()
        if thought:
            self._skips_space = False
            self._waiting = self._waiting[len(thought) :]
            yield Span(len(thought), thinking=thought)
        if at >= 0:
            yield self._drop(self._waiting.find(END_THINK) + len(END_THINK))
            self._state, self._skips_space = _State.THOUGHT, True

    def _thought(self) -> Iterator[Span]:
        yield from self._skip()
        if self._waiting:
            self._state, self._skips_space = self._first, False

    # ---------------------------------------------------------------------------------------------- text

    def _start(self) -> Iterator[Span]:
        """Start with a bare call, or anything else; drop the separator after a call."""
        assert self._syntax is not None
        yield from self._skip(";")
        written = self._waiting.lstrip()
        if written.startswith("{"):
            self._state, self._is_bare = _State.HEAD, True
        elif written and not self._syntax.begin.startswith(written):
            self._state = _State.TEXT

    def _text(self) -> Iterator[Span]:
        """Yield text up to the next call, without the white space before it."""
        if self._syntax is None:
            yield self._say(len(self._waiting))
            return
        yield from self._skip()
        begin = self._syntax.begin
        at = self._waiting.find(begin)
        if free := self._free(begin) if at < 0 else len(self._waiting[:at].rstrip()):
            self._skips_space = False
            yield self._say(free)
        if at >= 0:
            yield self._drop(self._waiting.find(begin) + len(begin))
            self._state, self._is_bare = _State.HEAD, False

    def _skip(self, more: str = "") -> Iterator[Span]:
        """Drop white space, and `more`."""
        if self._skips_space and (count := len(self._waiting) - len(self._waiting.lstrip(" \t\r\n" + more))):
            yield self._drop(count)

    def _free(self, marker: str) -> int:
        """Return how many characters cannot belong to a marker, or to white space before it."""
        held = _held(self._waiting, marker)
        return len(self._waiting[: len(self._waiting) - held].rstrip())

    # --------------------------------------------------------------------------------------------- calls

    def _read_head(self) -> Iterator[Span]:
        assert self._head is not None
        if found := self._head.whole.match(self._waiting):
            if found[1] in self._offered:
                self._index += 1
                length = found.end()
                self._waiting = self._waiting[length:]
                yield Span(length, call=CallDelta(self._index, self._new_id(), found[1]))
                self._object, self._arguments = ObjectScan(), []
                self._state, self._is_bare = _State.ARGUMENTS, False
            elif self._is_bare:
                self._state = _State.TEXT
            else:
                self.problem = f"there is no tool {found[1]!r}"
        elif not self._head.part.fullmatch(self._waiting):
            self._object, self._arguments = ObjectScan(), []
            self._state = _State.TEXT if self._is_bare else _State.WHOLE

    def _read_arguments(self) -> Iterator[Span]:
        written = self._scan()
        if written:
            yield Span(len(written), call=CallDelta(self._index, arguments=written))
        if self._object.is_over:
            if not isinstance(_parsed("".join(self._arguments)), dict):
                self.problem = "its arguments are no JSON object"
            self._state = _State.TAIL

    def _read_tail(self) -> Iterator[Span]:
        written = self._waiting.lstrip()
        if written.startswith("}"):
            yield self._completed(
                len(self._waiting) - len(written) + 1, CallDelta(self._index, complete=True)
            )
        elif written:
            self.problem = "there is more in it than a name and arguments"

    def _read_whole(self) -> Iterator[Span]:
        if not self._arguments and (written := self._waiting.lstrip()):
            if not written.startswith("{"):
                self.problem = "it is no JSON object"
                return
            yield self._drop(len(self._waiting) - len(written))
        if written := self._scan():
            yield Span(len(written))
        if self._object.is_over:
            yield from self._whole(_parsed("".join(self._arguments)))

    def _whole(self, call: Any) -> Iterator[Span]:
        assert self._syntax is not None
        name = call.get("name") if isinstance(call, dict) else None
        arguments = call.get(self._syntax.arguments, {}) if isinstance(call, dict) else None
        if not isinstance(name, str) or not isinstance(arguments, dict):
            self.problem = "it has no name or no arguments"
        elif name not in self._offered:
            self.problem = f"there is no tool {name[:64]!r}"
        else:
            self._index += 1
            written = json.dumps(arguments, ensure_ascii=False)
            yield self._completed(0, CallDelta(self._index, self._new_id(), name, written, complete=True))

    def _scan(self) -> str:
        """Return the available part of the current object."""
        count = self._object.feed(self._waiting)
        if self._object.is_broken:
            self.problem = "it is no JSON"
            return ""
        written, self._waiting = self._waiting[:count], self._waiting[count:]
        if written:
            self._arguments.append(written)
        return written

    def _completed(self, length: int, delta: CallDelta) -> Span:
        self.calls += 1
        self._arguments, self._skips_space = [], True
        self._waiting = self._waiting[length:]
        self._state = _State.CLOSE
        return Span(length, call=delta)

    def _close(self) -> Iterator[Span]:
        assert self._syntax is not None
        written = self._waiting.lstrip()
        if written.startswith(self._syntax.end):
            yield self._drop(len(self._waiting) - len(written) + len(self._syntax.end))
            self._state = self._first
        elif not self._syntax.end.startswith(written):
            self.problem = "it does not end"

    # ------------------------------------------------------------------------------------------- pieces

    def _say(self, count: int) -> Span:
        said, self._waiting = self._waiting[:count], self._waiting[count:]
        return _said(said)

    def _drop(self, count: int) -> Span:
        self._waiting = self._waiting[count:]
        return Span(count)


class ObjectScan:
    """A scanner that finds the end of a JSON object, in pieces, without validating it."""

    def __init__(self) -> None:
        self.is_over = False
        self.is_broken = False
        """Whether it holds a character that is invalid in JSON."""
        self._depth = 0
        self._is_string = self._is_escaped = False

    def feed(self, text: str) -> int:
        """Return how many characters belong to the object."""
        for i, character in enumerate(text):
            if self._is_string:
                if self._is_escaped:
                    self._is_escaped = False
                elif character == "\\":
                    self._is_escaped = True
                elif character == '"':
                    self._is_string = False
            elif character not in _OUTSIDE:
                self.is_broken = True
                return i
            elif character == '"':
                self._is_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.is_over = True
                    return i + 1
        return len(text)


@dataclass(frozen=True)
class _Head:
    """The beginning of a call, up to the brace of its arguments."""

    whole: re.Pattern[str]
    part: re.Pattern[str]
    """Matches every possible beginning of a call."""


def _head(arguments: str) -> _Head:
    atoms: list[str] = []
    for word in ("{", '"', "name", '"', ":", '"', None, '"', ",", '"', arguments, '"', ":"):
        atoms += [r"[a-zA-Z0-9_-]{1,64}"] if word is None else [re.escape(c) for c in word]
    spaced = _spaced(atoms)
    part = ""
    for atom in reversed(spaced):
        part = f"(?:{atom}{part})?"
    whole = "".join(f"({atom})" if "64" in atom else atom for atom in spaced)
    return _Head(re.compile(whole + r"(?=\{)"), re.compile(part))


def _spaced(atoms: list[str]) -> list[str]:
    """Allow white space around punctuation."""
    spaced, is_string = [r"\s*"], False
    for atom in atoms:
        spaced.append(atom)
        is_string ^= atom == '"'
        if not is_string:
            spaced.append(r"\s*")
    return spaced


def _held(text: str, marker: str) -> int:
    """Return how many characters at the end may begin a marker, without the white space before them."""
    for count in range(min(len(marker) - 1, len(text)), 0, -1):
        if marker.startswith(text[-count:]):
            return count
    return 0


def _said(text: str) -> Span:
    return Span(len(text), text=text)


def _parsed(text: str) -> Any:
    """Return the value of JSON text; None if it is invalid."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
