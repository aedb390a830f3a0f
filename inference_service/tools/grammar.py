"""Constrained decoding of tool calls: the tokens that may follow in an answer, by the schemas of its tools.

Schemas come from callers, so all of this runs outside the engine's thread. The size of a schema is bounded
before it is compiled. `_LIMITS` bound the cost of compiling it and of each later step.
"""

import json
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from numpy.typing import NDArray

from antiphon.contract import Reason
from inference_service.errors import UnitRefused
from inference_service.interface.setups import Tool, Tools
from inference_service.tools.reader import END_THINK, THINK, Thinking
from inference_service.tools.syntax import CallSyntax

logger = logging.getLogger(__name__)

MOST_PATTERN = 256
"""Limit of characters of a regular expression in a schema."""
MOST_VALUES = 4096
"""Limit of values in the schemas of all callable tools."""
MOST_MULTIPLE = 1000
"""Limit of `multipleOf`, which is a whole number."""
_LIMITS = LLParserLimits(
    initial_lexer_fuel=200_000,
    step_lexer_fuel=20_000,
    step_max_items=20_000,
    max_lexer_states=10_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)
"""Limits of one answer: tens of milliseconds and tens of megabytes.

The library's own limits allow seconds and gigabytes.
"""
_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""The JSON style of models; with flexible white space, a constrained model may write it endlessly."""


@dataclass(frozen=True)
class Mask:
    """A bit mask of the ids that may come next, lowest first, int32 [vocabulary / 32]."""

    words: NDArray[np.int32]
    is_over: bool = False
    """Whether no id may come next: the answer is complete."""
    problem: str = ""
    """The reason why there is no mask."""


class Constraint:
    """The constraint of one answer. Used by one thread at a time."""

    def __init__(self, matcher: LLMatcher, vocabulary: int) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self.first = self._mask()

    def after(self, token: int) -> Mask:
        """Return the mask after this token, which the previous mask allowed."""
        self._matcher.consume_token(token)
        return self._mask()

    def _mask(self) -> Mask:
        bits = allocate_token_bitmask(1, self._vocabulary)
        if not self._matcher.is_stopped():
            fill_next_token_bitmask(self._matcher, bits)
        problem = str(self._matcher.get_error())
        return Mask(bits[0], is_over=not problem and self._matcher.is_stopped(), problem=problem)


class CallGrammar:
    """The grammar of a model's tool calls, from which the constraints of its answers are made."""

    def __init__(
        self,
        tokenizer: str,
        vocabulary: int,
        ends: Collection[int],
        syntax: CallSyntax,
        token: Callable[[str], int | None],
    ) -> None:
        """Create the grammar; `tokenizer` is the text of `tokenizer.json`, `vocabulary` the number of scores,
        and `ends` end an answer.

        It takes a second for a large vocabulary. Raises `ValueError` for a tokenizer that cannot be used.
        """
        self._tokenizer = LLTokenizer(
            _without_added_space(tokenizer), n_vocab=vocabulary, eos_token=sorted(ends)
        )
        self._vocabulary = vocabulary
        self._syntax = syntax
        self._token = token

    def constraint(self, tools: Tools, thinking: Thinking) -> Constraint:
        """Return the constraint that the answer is one call or more. Raises `UnitRefused` for unsupported
        schemas.
        """
        wanted = [(i, it) for i, it in enumerate(tools.offered) if tools.named in ("", it.name)]
        left = MOST_VALUES
        for i, tool in wanted:
            left = _checked(tool.parameters, f"turn.tools[{i}].parameters_json", left)
        matcher = self._matcher([tool for _, tool in wanted], thinking, is_parallel=tools.are_parallel)
        if matcher.is_error():
            raise self._refusal(wanted) or _refused("turn.tools", _first_line(matcher.get_error()))
        return Constraint(matcher, self._vocabulary)

    def _refusal(self, tools: Sequence[tuple[int, Tool]]) -> UnitRefused | None:
        """Return the refusal that names a tool that cannot be compiled; None if only all of them together
        cannot.
        """
        for i, tool in tools:
            matcher = self._matcher([tool], Thinking.NO, is_parallel=False)
            if matcher.is_error():
                return _refused(f"turn.tools[{i}].parameters_json", _first_line(matcher.get_error()))
        return None

    def _matcher(self, tools: Sequence[Tool], thinking: Thinking, *, is_parallel: bool) -> LLMatcher:
        grammar = "\n".join(self._rules(tools, thinking, is_parallel=is_parallel))
        return LLMatcher(self._tokenizer, grammar, log_level=0, limits=_LIMITS)

    def _rules(self, tools: Sequence[Tool], thinking: Thinking, *, is_parallel: bool) -> Iterator[str]:
        """Yield a grammar in the library's own language."""
        syntax = self._syntax
        more = f" ({_quoted(syntax.separator)} call)*" if is_parallel else ""
        yield f"start: {self._thought(thinking)}call{more}"
        yield "call: " + " | ".join(f"call_{i}" for i in range(len(tools)))
        for i, tool in enumerate(tools):
            begin = f'{{"name": "{tool.name}", "{syntax.arguments}": '
            parts = [_quoted(begin), f"arguments_{i}", '"}"']
            if syntax.end:
                line = _quoted("\n")
                parts = [self._mark(syntax.begin), line, *parts, line, self._mark(syntax.end)]
            yield f"call_{i}: {' '.join(parts)}"
            yield f"arguments_{i}: %json {json.dumps({**tool.parameters, 'x-guidance': _STYLE})}"

    def _mark(self, text: str) -> str:
        token = self._token(text)
        return _quoted(text) if token is None else f"<[{token}]>"

    def _thought(self, thinking: Thinking) -> str:
        """Return the rule for text before the calls."""
        if thinking is Thinking.NO:
            return ""
        begin, end = self._token(THINK), self._token(END_THINK)
        if begin is None or end is None or not self._tokenizer.is_special_token(end):
            raise _refused("turn.tool_choice", "this model cannot think and be made to call a tool")
        thought = rf"/(?s:.*)/ <[{end}]> /\n{{0,2}}/ "
        return thought if thinking is Thinking.BEGUN else f"(<[{begin}]> {thought})? "


def _without_added_space(tokenizer: str) -> str:
    """Return a tokenizer that adds no space before a text.

    llguidance tokenizes forced text with this tokenizer, also in the middle of a line.
    """
    told = json.loads(tokenizer)
    steps = told.get("pre_tokenizer") or {}
    for step in (steps, *steps.get("pretokenizers", ())):
        if "add_prefix_space" in step:
            step["add_prefix_space"] = False
    return json.dumps(told)


def _checked(schema: dict[str, Any], path: str, left: int) -> int:
    """Return how many values are left after this schema, in which every JSON value counts.

    Raises `UnitRefused` for a schema that costs too much.
    """
    todo: list[Any] = [schema]
    while todo:
        value = todo.pop()
        left -= 1
        if left < 0:
            raise _refused("turn.tools", f"schemas that are enforced have at most {MOST_VALUES} values")
        if isinstance(value, list):
            todo += value
        elif isinstance(value, dict):
            _check_keys(value, path)
            todo += value.values()
    return left


def _check_keys(schema: dict[str, Any], path: str) -> None:
    patterns = [schema.get("pattern"), *(schema.get("patternProperties") or ())]
    if any(isinstance(it, str) and len(it) > MOST_PATTERN for it in patterns):
        raise _refused(path, f"a pattern that is enforced has at most {MOST_PATTERN} characters")
    multiple = schema.get("multipleOf", 1)
    if isinstance(multiple, float) or (isinstance(multiple, int) and not 1 <= multiple <= MOST_MULTIPLE):
        raise _refused(path, f"multipleOf that is enforced is a whole number, 1 to {MOST_MULTIPLE}")


def _refused(field: str, problem: str) -> UnitRefused:
    return UnitRefused(Reason.PARAMS_INVALID, f"{field} cannot be enforced: {problem}.", field)


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:300].rstrip(".")


def _quoted(text: str) -> str:
    return json.dumps(text)
