"""Answers taken apart, cut at every place: what comes out is the same, and nothing of a call is ever said."""

import itertools
import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_service.interface.engine import CallDelta
from inference_service.tools.reader import AnswerReader, Span, Thinking
from inference_service.tools.syntax import HERMES, LLAMA, CallSyntax
from tests.support.long import examples

OFFERED = ("weather", "time")
BERN = '{"city": "Bern"}'


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def llama(name: str, arguments: str) -> str:
    return f'{{"name": "{name}", "parameters": {arguments}}}'


class Told:
    """A reader's output for an answer that arrives in these pieces."""

    def __init__(
        self,
        syntax: CallSyntax | None,
        pieces: Sequence[str],
        thinking: Thinking = Thinking.NO,
        *,
        is_cut: bool = False,
    ) -> None:
        ids = map("id{}".format, itertools.count())
        reader = AnswerReader(syntax, OFFERED, thinking, lambda: next(ids))
        self.spans: list[Span] = [span for piece in pieces for span in reader.push(piece)]
        self.spans += reader.end(is_cut=is_cut)
        self.problem, self.complete = reader.problem, reader.calls
        deltas = [span.call for span in self.spans if span.call is not None]
        self.calls = [_joined(list(group)) for _, group in itertools.groupby(deltas, lambda it: it.index)]
        self.text = "".join(span.text for span in self.spans)
        self.thinking = "".join(span.thinking for span in self.spans)

    @property
    def outcome(self) -> tuple[object, ...]:
        """The output without its division into spans."""
        return self.text, self.thinking, self.calls, self.problem, self.complete, self.order

    @property
    def order(self) -> list[str]:
        kinds = (
            "text" if it.text else "thinking" if it.thinking else f"call {it.call.index}" if it.call else ""
            for it in self.spans
        )
        return [kind for kind, _ in itertools.groupby(kind for kind in kinds if kind)]


def _joined(deltas: list[CallDelta]) -> tuple[str, str, str, bool]:
    first, last = deltas[0], deltas[-1]
    assert first.id
    assert first.name
    assert not any(it.id or it.name or it.complete for it in deltas[1:-1])
    return first.id, first.name, "".join(it.arguments for it in deltas), last.complete


WEATHER, TIME = ("weather", BERN), ("time", "{}")
ODD, NESTED = '{"city": "</tool_call>\\"}{["}', '{"a": [{"b": {}}, [1, -2.5e3, null, true]]}'
ZURICH = '{"city":"Zürich 🌧"}'
LOOK = "Let me look."
HERMES_ANSWERS: dict[str, tuple[str, str, list[tuple[str, str]]]] = {
    "no call": ("It rains. ", "It rains. ", []),
    "what only looks like one": ("a < b, <tool> or <tool_call", "a < b, <tool> or <tool_call", []),
    "a call": (hermes(*WEATHER), "", [WEATHER]),
    "text before it": (f"{LOOK}\n\n" + hermes(*WEATHER), LOOK, [WEATHER]),
    "text behind it": (hermes(*TIME) + "\n Done. ", "Done. ", [TIME]),
    "two calls": (hermes(*WEATHER) + "\n" + hermes(*TIME) + "\n", "", [WEATHER, TIME]),
    "text between calls": (hermes(*WEATHER) + "\nand " + hermes(*TIME), "and", [WEATHER, TIME]),
    "the end of a call in its arguments": (hermes("weather", ODD), "", [("weather", ODD)]),
    "nested arguments": (hermes("weather", NESTED), "", [("weather", NESTED)]),
    "no space at all": (
        f'<tool_call>{{"name":"weather","arguments":{ZURICH}}}</tool_call>',
        "",
        [("weather", ZURICH)],
    ),
    "space everywhere": (
        '<tool_call> \n{ "name" : "time" ,\n "arguments" : { } \n} \n</tool_call>',
        "",
        [("time", "{ }")],
    ),
    "arguments before the name": (
        f'<tool_call>{{"arguments": {BERN}, "name": "weather"}}</tool_call>',
        "",
        [WEATHER],
    ),
    "no arguments": ('<tool_call>\n{"name": "time"}\n</tool_call>', "", [TIME]),
    "the end is missing": (hermes(*TIME).removesuffix("</tool_call>"), "", [TIME]),
}
LLAMA_ANSWERS: dict[str, tuple[str, str, list[tuple[str, str]]]] = {
    "a Llama call": (llama(*WEATHER), "", [WEATHER]),
    "a Llama call after space": ("\n " + llama(*WEATHER), "", [WEATHER]),
    "a Llama call behind its tag": ("<|python_tag|>" + llama(*TIME), "", [TIME]),
    "text before a Llama tag": (f"{LOOK} <|python_tag|>" + llama(*TIME), LOOK, [TIME]),
    "several Llama calls": (
        llama(*WEATHER) + "; " + llama(*TIME) + "\n" + llama(*TIME),
        "",
        [WEATHER, TIME, TIME],
    ),
    "JSON that is no call": ('{"name": "Bern", "size": 3}', '{"name": "Bern", "size": 3}', []),
    "JSON of a tool that there is not": (llama("news", "{}"), llama("news", "{}"), []),
    "the beginning of JSON": ('  {"nam', '  {"nam', []),
    "text with JSON": ("So: " + llama(*TIME), "So: " + llama(*TIME), []),
}
ANSWERS = HERMES_ANSWERS | LLAMA_ANSWERS


@pytest.mark.parametrize("case", ANSWERS)
def test_an_answer_is_text_and_calls_however_it_is_cut(case: str) -> None:
    syntax, (answer, text, calls) = LLAMA if case in LLAMA_ANSWERS else HERMES, ANSWERS[case]
    told, letters = Told(syntax, [answer]), Told(syntax, list(answer))
    assert told.text == text
    assert told.calls == [(f"id{i}", name, given, True) for i, (name, given) in enumerate(calls)]
    assert (told.problem, told.complete) == ("", len(calls))
    assert letters.outcome == told.outcome
    for at in range(len(answer)):
        assert Told(syntax, [answer[:at], answer[at:]]).outcome == told.outcome
    # Each text is at its own offset in the answer, so characters tell tokens apart.
    at = 0
    for span in letters.spans:
        if span.text:
            assert answer[at : at + span.length] == span.text
        at += span.length
    rest = answer[at:]
    assert not rest.strip() or "</tool_call>".startswith(rest.strip())


def test_arguments_come_as_they_are_written() -> None:
    reader = AnswerReader(HERMES, OFFERED)
    reader.push("<tool_call>\n")
    assert reader.push('{"name": "weather", "arguments": ') == []
    (begun, first) = reader.push('{"ci')
    assert begun.call == CallDelta(0, "", "weather")
    assert first.call == CallDelta(0, arguments='{"ci')
    assert [it.call for it in reader.push('ty": "Be')] == [CallDelta(0, arguments='ty": "Be')]
    ended = [it.call for it in reader.push('rn"}}')]
    assert ended == [CallDelta(0, arguments='rn"}'), CallDelta(0, complete=True)]


def test_text_does_not_wait_longer_than_it_must() -> None:
    reader = AnswerReader(HERMES, OFFERED)
    assert [it.text for it in reader.push("Let me")] == ["Let me"]
    assert [it.text for it in reader.push(" <")] == []
    assert [it.text for it in reader.push("too")] == []
    assert [it.text for it in reader.push("l>")] == [" <tool>"]


MALFORMED = {
    "no JSON": "<tool_call>\nweather\n</tool_call>",
    "broken JSON": hermes("weather", '{"city": Bern}'),
    "broken JSON of the right characters": hermes("weather", "{1, 2}"),
    "a control character": hermes("weather", '{"city": "a\nb"}'),
    "a list": hermes("weather", '["Bern"]'),
    "arguments in a string": hermes("weather", '"{}"'),
    "a tool that there is not": hermes("news", "{}"),
    "a tool that there is not, late": '<tool_call>{"arguments": {}, "name": "news"}</tool_call>',
    "more than a call": '<tool_call>{"name": "time", "arguments": {}, "id": 3}</tool_call>',
    "an end that is none": hermes("time", "{}").replace("</tool_call>", "</tool>"),
    "an end before the end": '<tool_call>{"name": "time", "arguments": {"x": </tool_call>',
    "no name": "<tool_call>{}</tool_call>",
    "nothing": "<tool_call></tool_call>",
    "the end of the answer": '<tool_call>{"name": "time", "arguments": {"x": "',
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_call_is_a_problem_however_it_is_cut(case: str) -> None:
    answer = "Let me look. " + MALFORMED[case]
    whole = Told(HERMES, [answer])
    assert whole.problem
    assert whole.text == "Let me look."
    for at in range(len(answer)):
        told = Told(HERMES, [answer[:at], answer[at:]])
        assert (told.text, told.problem, told.complete) == (whole.text, whole.problem, whole.complete)


def test_nothing_comes_behind_a_problem() -> None:
    reader = AnswerReader(HERMES, OFFERED)
    reader.push(MALFORMED["no JSON"])
    assert reader.push("Hello") == []
    assert reader.end(is_cut=False) == []


@pytest.mark.parametrize("at", range(1, len(hermes("weather", BERN)) - len("\n</tool_call>") - 1))
def test_a_call_that_is_cut_off_is_not_complete(at: int) -> None:
    told = Told(HERMES, [hermes("weather", BERN)[:at]], is_cut=True)
    assert (told.problem, told.complete) == ("", 0)
    assert not any(complete for *_, complete in told.calls)


THOUGHTS: dict[str, tuple[Thinking, str, str, str]] = {
    "a thought": (Thinking.MAY, "<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
    "a thought in lines": (Thinking.MAY, "<think>\nHm.\n\nSo.\n</think>\n\nYes.", "Hm.\n\nSo.", "Yes."),
    "no thought": (Thinking.MAY, " Yes.", "", " Yes."),
    "an empty thought": (Thinking.MAY, "<think>\n\n</think>\n\nYes.", "", "Yes."),
    "only a thought": (Thinking.MAY, "<think>Hm. </thi", "Hm. </thi", ""),
    "what begins like one": (Thinking.MAY, "<thing>", "", "<thing>"),
    "a second one": (Thinking.MAY, "<think>a</think>b <think>c</think>", "a", "b <think>c</think>"),
    "one that the prompt began": (Thinking.BEGUN, "\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
    "one that was not asked for": (Thinking.NO, "<think>a</think>b", "", "<think>a</think>b"),
}


@pytest.mark.parametrize("syntax", [None, HERMES, LLAMA], ids=["no tools", "hermes", "llama"])
@pytest.mark.parametrize("case", THOUGHTS)
def test_thoughts_are_no_part_of_the_answer(case: str, syntax: CallSyntax | None) -> None:
    thinking, answer, thought, text = THOUGHTS[case]
    told = Told(syntax, [answer], thinking)
    assert (told.thinking, told.text) == (thought, text)
    for at in range(len(answer)):
        assert Told(syntax, [answer[:at], answer[at:]], thinking).outcome == told.outcome


def test_a_thought_may_speak_of_calls() -> None:
    told = Told(
        HERMES, ["<think>" + hermes("time", "{}") + "</think>\n" + hermes("weather", BERN)], Thinking.MAY
    )
    assert told.thinking == hermes("time", "{}")
    assert [name for _, name, _, _ in told.calls] == ["weather"]
    assert told.text == ""


_MARKUP = [
    *("<tool_call>", "</tool_call>", "<|python_tag|>", "<think>", "</think>", "\n", " ", "; ", "a <b> c"),
    *('{"name": "', '"time"', 'weather", "arguments": ', 'time", "parameters": ', "{", "}", '"', "\\", BERN),
    *(hermes("weather", BERN), hermes("time", "{}"), llama("time", "{}"), "Yes.", '{"x": ["</tool_call>"]}'),
]


@settings(max_examples=examples(400), deadline=None)
@given(
    parts=st.lists(st.sampled_from(_MARKUP), max_size=9),
    cuts=st.lists(st.integers(0, 400), max_size=6),
    syntax=st.sampled_from([None, HERMES, LLAMA]),
    thinking=st.sampled_from(list(Thinking)),
    is_cut=st.booleans(),
)
def test_cuts_change_nothing(
    parts: list[str], cuts: list[int], syntax: CallSyntax | None, thinking: Thinking, is_cut: bool
) -> None:
    answer = "".join(parts)
    places = [0, *sorted(cut for cut in cuts if cut < len(answer)), len(answer)]
    pieces = [answer[begin:end] for begin, end in itertools.pairwise(places)]
    told = Told(syntax, pieces, thinking, is_cut=is_cut)
    assert told.outcome == Told(syntax, [answer], thinking, is_cut=is_cut).outcome
    assert Told(syntax, list(answer), thinking, is_cut=is_cut).outcome == told.outcome
    for _, name, given_arguments, complete in told.calls:
        assert name in OFFERED
        assert not complete or isinstance(json.loads(given_arguments), dict)
