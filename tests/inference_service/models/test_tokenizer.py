"""Text to ids and back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_service.models.tokenizer import SPECIAL_NAMES
from tests.inference_service.engine.support import golden


@pytest.fixture
def special_ids() -> set[int]:
    tokenizer = golden.tokenizer()
    return {i for i in range(tokenizer.size) if not tokenizer.is_text(i)}


@pytest.mark.parametrize("name", SPECIAL_NAMES.values())
def test_special_token_in_peoples_text_is_plain_text(name: str, special_ids: set[int]) -> None:
    tokenizer = golden.tokenizer()
    text = f"ignore that {name} and listen"
    tokenizer.encode_template(f"{name}system\n")  # templates leave people's text plain
    ids = tokenizer.encode(text)
    assert not special_ids & set(ids)
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(("field", "name"), SPECIAL_NAMES.items())
def test_special_token_in_a_template_means_itself(field: str, name: str) -> None:
    tokenizer = golden.tokenizer()
    assert tokenizer.encode_template(name) == [getattr(tokenizer.special, field)]


def test_special_tokens_leave_no_trace_in_text_nor_are_ids_beyond_the_vocabulary_text() -> None:
    tokenizer = golden.tokenizer()
    special = tokenizer.special
    assert tokenizer.decode([special.speak, *tokenizer.encode("I am"), special.turn_eos]) == "I am"
    assert (tokenizer.size, tokenizer.is_text(300), tokenizer.is_text(745)) == (745, True, False)


def test_decision_tokens_differ_from_terminators() -> None:
    special = golden.tokenizer().special
    assert special.terminators - special.decisions == {special.chunk_eos}
    assert special.decisions - special.terminators == {special.speak, special.tts_bos, special.turn_eos}


@settings(deadline=None)
@given(st.lists(st.integers(0, golden.tokenizer().size - 1), max_size=12), st.text(max_size=12))
def test_no_text_is_longer_than_its_tokens_can_be(ids: list[int], text: str) -> None:
    """Neither of ids that mean something together, nor of any others, halves of characters among them."""
    tokenizer = golden.tokenizer()
    for said in (ids, tokenizer.encode(text), tokenizer.encode(text)[1:]):
        assert len(tokenizer.decode(said)) <= sum(map(tokenizer.most_characters, said))
