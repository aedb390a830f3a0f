"""Calls that cannot be written wrong, and what schemas of attackers come to."""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from jsonschema import validate
from tokenizers import Tokenizer as FastTokenizer

from inference_service.checkpoints.location import find
from inference_service.errors import UnitRefused
from inference_service.interface.setups import Tool, ToolMode, Tools
from inference_service.tools.grammar import MOST_PATTERN, MOST_VALUES, CallGrammar, Constraint
from inference_service.tools.reader import AnswerReader, Thinking
from inference_service.tools.syntax import HERMES, LLAMA, CallSyntax
from tests.inference_service.engine.support import tiny_caller

WORDS = tiny_caller.tokenizer()
END = WORDS.eos_token_id
VOCABULARY = len(WORDS) + 5
"""As models have it: a few more scores than tokens."""


def grammar(syntax: CallSyntax = HERMES) -> CallGrammar:
    fast = WORDS.backend_tokenizer
    return CallGrammar(fast.to_str(), VOCABULARY, [END], syntax, fast.token_to_id)


@pytest.fixture(scope="module")
def hermes() -> CallGrammar:
    return grammar()


def one(schema: dict[str, Any], name: str = "f") -> Tools:
    return Tools((Tool(name, "", schema),), ToolMode.REQUIRED, are_parallel=False)


def of_string(**keys: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": {"type": "string", **keys}}, "required": ["x"]}


def walk(constraint: Constraint, seed: int, most: int = 300) -> Iterator[int]:
    """Tokens drawn at random among those that are allowed."""
    source, mask = random.Random(seed), constraint.first
    for _ in range(most):
        if mask.is_over or mask.problem:
            return
        allowed = np.flatnonzero(np.unpackbits(mask.words.view(np.uint8), bitorder="little"))
        assert allowed.max() < len(WORDS), "nothing that is no token"
        token = int(source.choice(allowed))
        yield token
        mask = constraint.after(token)


SCHEMAS: dict[str, dict[str, Any]] = {
    "nothing": {"type": "object", "properties": {}, "additionalProperties": False},
    "a city": tiny_caller.CITY,
    "lists": {
        "type": "object",
        "properties": {"x": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}},
        "required": ["x"],
        "additionalProperties": False,
    },
    "a pattern": {**of_string(pattern="^[a-c]{2,5}$"), "additionalProperties": False},
    "a reference": {
        "type": "object",
        "$defs": {"it": {"enum": ["é", '"', "</tool_call>", {"a": [None]}]}},
        "properties": {"x": {"$ref": "#/$defs/it"}, "y": {"anyOf": [{"type": "null"}, {"const": 3}]}},
        "required": ["x"],
        "additionalProperties": False,
    },
}


@pytest.mark.parametrize("syntax", [HERMES, LLAMA], ids=["hermes", "llama"])
@pytest.mark.parametrize("case", SCHEMAS)
def test_any_draw_yields_call_valid_by_schema(case: str, syntax: CallSyntax) -> None:
    schema, made = SCHEMAS[case], grammar(syntax)
    for seed in range(5):
        tokens = list(walk(made.constraint(one(schema), Thinking.NO), seed))
        reader = AnswerReader(syntax, ["f"], new_id=lambda: "id")
        spans = reader.push(WORDS.decode(tokens)) + reader.end(is_cut=False)
        assert (reader.problem, reader.calls) == ("", 1)
        assert not any(span.text for span in spans)
        written = "".join(span.call.arguments for span in spans if span.call is not None)
        validate(json.loads(written), schema)


def test_a_call_ends_where_nothing_may_follow(hermes: CallGrammar) -> None:
    tokens = list(walk(hermes.constraint(one(SCHEMAS["nothing"]), Thinking.NO), 0))
    assert WORDS.decode(tokens) == '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    assert END not in tokens


def test_constraints_of_one_grammar_share_nothing(hermes: CallGrammar) -> None:
    apart = [list(walk(hermes.constraint(one(SCHEMAS["a city"]), Thinking.NO), seed)) for seed in (1, 2)]
    walks = [walk(hermes.constraint(one(SCHEMAS["a city"]), Thinking.NO), seed) for seed in (1, 2)]
    together: list[list[int]] = [[], []]
    while any(len(said) < len(alone) for said, alone in zip(together, apart, strict=True)):
        for said, it in zip(together, walks, strict=True):
            said += [token for token in [next(it, None)] if token is not None]
    assert together == apart


def test_a_thought_may_stand_before_it(hermes: CallGrammar) -> None:
    for thinking, text in ((Thinking.MAY, "<think>\nHm.\n</think>\n\n"), (Thinking.BEGUN, "Hm.</think>")):
        constraint = hermes.constraint(one(SCHEMAS["nothing"]), thinking)
        mask = constraint.first
        for token in WORDS.encode(text + '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'):
            assert mask.words[token // 32] >> token % 32 & 1, WORDS.decode([token])
            mask = constraint.after(token)
        assert mask.is_over


REFUSED: dict[str, dict[str, Any]] = {
    "a long pattern": of_string(pattern="a?" * MOST_PATTERN),
    "a long pattern of names": {"type": "object", "patternProperties": {"a?" * MOST_PATTERN: {}}},
    "a long pattern that looks like data": {
        "type": "object",
        "properties": {"enum": {"type": "string", "pattern": "a?" * MOST_PATTERN}},
    },
    "a fraction": of_string() | {"properties": {"x": {"multipleOf": 1e-5}}},
    "a large factor": of_string() | {"properties": {"x": {"multipleOf": 99991}}},
    "a huge enumeration": {"type": "object", "enum": [{}] * MOST_VALUES},
    "another server's schema": {"type": "object", "properties": {"x": {"$ref": "http://127.0.0.1:9/schema"}}},
    "a file": {"type": "object", "properties": {"x": {"$ref": "file:///etc/hostname"}}},
    "what is not enforced": {"type": "object", "not": {"required": ["x"]}},
    "a broken pattern": of_string(pattern="("),
    "a schema of no sense": {"type": "object", "properties": 3},
    "nothing that it could be": {"type": "object", "properties": {"x": False}, "required": ["x"]},
}


@pytest.mark.parametrize("case", REFUSED)
def test_unenforceable_schema_is_refused_with_its_field(hermes: CallGrammar, case: str) -> None:
    with pytest.raises(UnitRefused) as refused:
        hermes.constraint(one(REFUSED[case]), Thinking.NO)
    field = "turn.tools" if case == "a huge enumeration" else "turn.tools[0].parameters_json"
    failure = refused.value.failure
    assert (failure.reason, failure.field) == ("PARAMS_INVALID", field)
    assert len(failure.message) < 500


def test_the_one_of_many_that_cannot_be_enforced_is_named(hermes: CallGrammar) -> None:
    tools = Tools(
        (Tool("good", "", SCHEMAS["nothing"]), Tool("bad", "", REFUSED["what is not enforced"])),
        ToolMode.REQUIRED,
    )
    with pytest.raises(UnitRefused) as refused:
        hermes.constraint(tools, Thinking.NO)
    assert refused.value.failure.field == "turn.tools[1].parameters_json"


def _chain(length: int) -> dict[str, Any]:
    steps = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(length)}
    return {
        "type": "object",
        "$defs": {**steps, f"d{length}": {"type": "string"}},
        "properties": {"x": {"$ref": "#/$defs/d0"}},
        "required": ["x"],
    }


def _many(make: Callable[[int], dict[str, Any]], count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"k{i}": make(i) for i in range(count)}}


BOMBS: dict[str, dict[str, Any]] = {
    "repetitions in one another": of_string(pattern="^((([a-z]{1,100}){1,100}){1,100}){1,100}$"),
    "optional letters": of_string(pattern="^" + "a?" * 80 + "a{80}$"),
    "an automaton of 2^30 states": of_string(pattern="^(.*x.{30})$"),
    "letters of all scripts": of_string(pattern=r"^(?i)\p{L}{100}[^a]{300}$"),
    "several large automata": of_string(
        pattern="^(" + "|".join(f"[a-z]*{it}[a-z]{{{20 + i}}}" for i, it in enumerate("etaoin")) + ")$"
    ),
    "patterns of every property": _many(
        lambda i: {"type": "string", "pattern": f"^(a|b)*a(a|b){{{i}}}$"}, 60
    ),
    "a thousand properties": _many(lambda i: {"type": "integer"}, 1000),
    "a chain of references": _chain(400),
    "a loop of references": {
        "type": "object",
        "$defs": {"n": {"$ref": "#/$defs/n"}},
        "properties": {"x": {"$ref": "#/$defs/n"}},
        "required": ["x"],
    },
    "alternatives alike": {
        "type": "object",
        "$defs": {
            "n": {
                "anyOf": [
                    {"type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 9 + i} for i in range(99)
                ]
            }
        },
        "properties": {"x": {"$ref": "#/$defs/n"}},
        "required": ["x"],
    },
    "products of alternatives": {
        "type": "object",
        "allOf": [
            {"anyOf": [{"properties": {f"{it}{i}": {"type": "integer"}}} for it in "ab"]} for i in range(20)
        ],
    },
    "brackets in one another": of_string(pattern="(" * 110 + "a" + ")*" * 70 + ")" * 40),
    "a billion characters": of_string(minLength=10**9, maxLength=2 * 10**9),
    "factors of many numbers": _many(lambda i: {"type": "integer", "multipleOf": 990 + i % 10}, 200),
}


def attempt(made: CallGrammar, schema: dict[str, Any]) -> tuple[str, str]:
    """The beginning of a call that is made by chance; or the field that is refused."""
    try:
        constraint = made.constraint(one(schema), Thinking.NO)
    except UnitRefused as refused:
        return "", refused.failure.field
    return WORDS.decode(list(walk(constraint, 1, most=80))), ""


@pytest.mark.parametrize("case", BOMBS)
def test_a_bomb_is_refused_or_goes_off_in_its_own_answer(hermes: CallGrammar, case: str) -> None:
    """In bounded steps, in which there is no crash and no end of memory."""
    written, field = attempt(hermes, BOMBS[case])
    assert written.startswith("<tool_call>") or field.startswith("turn.tools")


def test_a_tokenizer_that_adds_a_space_to_texts_adds_none_within_a_call() -> None:
    """The shipped model's does, and llguidance tokenizes forced text with it."""
    fast = FastTokenizer.from_file(str(find("antiphon-mini") / "tokenizer.json"))
    end = fast.token_to_id("<|im_end|>")
    grammar = CallGrammar(fast.to_str(), fast.get_vocab_size(), [end], HERMES, fast.token_to_id)
    light = Tool("light", "", {"type": "object", "properties": {"to": {"enum": ["on"]}}, "required": ["to"]})
    constraint = grammar.constraint(Tools((light,), are_parallel=False), Thinking.NO)
    before = "assistant\n"
    call = f'{before}<tool_call>\n{{"name": "light", "arguments": {{"to": "on"}}}}\n</tool_call>'
    tokens = fast.encode(call).ids[len(fast.encode(before).ids) :]
    mask = constraint.first
    for token in [*tokens, end]:
        assert np.unpackbits(mask.words.view(np.uint8), bitorder="little")[token], fast.id_to_token(token)
        mask = constraint.after(token)
    assert mask.is_over
