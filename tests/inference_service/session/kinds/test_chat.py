"""The rules of a chat turn, one decision at a time."""

import pytest
import torch

from inference_service.interface.engine import Done, End, Failure, Finish, Piece, Prefilled, Ready
from inference_service.interface.setups import Sampling, UnitOverrides
from inference_service.session.base.session import Stage
from tests.inference_service.engine.support.exchange import END, TURN_END, Exchange
from tests.inference_service.engine.support.talk import VOCABULARY, Said

UNUSABLE = Failure("IMAGE_INVALID", "no picture")


def begin(chat: Exchange, *tokens: int) -> None:
    """The next unit is heard, and these tokens are decided."""
    chat.hear()
    chat.generate()
    chat.decide(*tokens)


def texts(said: Said) -> list[str]:
    return [event.text for event in said.events if isinstance(event, Piece)]


def test_every_turn_begins_on_an_empty_context_and_the_tokens_of_the_session_add_up() -> None:
    chat = Exchange()
    assert chat.opening == [Ready(0)]
    first, second = chat.answer("Hi there"), chat.answer("Hi there you")
    one, two = first.one(Prefilled), second.one(Prefilled)
    assert one.context_tokens == two.context_tokens == one.usage.input_text_tokens
    assert two.usage.cached_tokens == 0
    before, after = first.closed.session_usage, second.closed.session_usage
    assert after.input_text_tokens == 2 * before.input_text_tokens
    assert after.output_text_tokens > 2 * before.output_text_tokens


def test_long_prompt_is_heard_in_portions_and_answered_once() -> None:
    chat = Exchange(limit=4096)
    said = chat.hear("a b c d " * 400)
    assert len(said.events) == 1
    assert said.one(Prefilled).context_tokens == said.one(Prefilled).usage.input_text_tokens > 1024


@pytest.mark.parametrize(("text", "shown"), [("Hi", "Hi"), ("", ""), (" Hi there", "Hi there")])
def test_end_token_ends_the_turn_and_is_counted_but_not_shown(text: str, shown: str) -> None:
    """Nor is the space that opens an answer."""
    chat = Exchange()
    said = chat.answer(text)
    assert (said.done.end, said.done.finish) == (End.TURN, Finish.EOS)
    assert (said.text, list(said.token_ids)) == (shown, chat.encode(text))
    assert said.done.usage.output_text_tokens == len(said.token_ids) + 1


def test_most_tokens_end_the_turn() -> None:
    chat = Exchange()
    said = chat.answer("one two three four", overrides=UnitOverrides(max_new_tokens=2))
    assert (said.done.end, said.done.finish) == (End.TURN, Finish.LENGTH)
    assert list(said.token_ids) == chat.encode("one two three four")[:2]


def test_end_of_the_context_ends_the_turn_and_not_the_session() -> None:
    chat = Exchange(limit=30)
    said = chat.answer("one two three four five six seven eight nine ten eleven twelve")
    assert (said.done.end, said.done.finish) == (End.TURN, Finish.LENGTH)
    assert said.one(Prefilled).context_tokens + said.done.usage.output_text_tokens == 30
    assert chat.answer("Hi").done.finish is Finish.EOS


def test_stop_token_ends_the_turn_and_is_not_shown() -> None:
    chat = Exchange()
    stop = chat.encode(" there")[-1]
    said = chat.answer("Hi there you", overrides=UnitOverrides(stop_token_ids=(stop,)))
    assert said.done.finish is Finish.STOP
    assert stop not in said.token_ids


def test_ignored_end_token_leaves_no_trace() -> None:
    chat = Exchange()
    chat.hear()
    chat.generate(UnitOverrides(ignore_eos=True, max_new_tokens=9))
    hello = chat.encode("Hello")
    said = chat.decide(*hello, END, END, *hello)
    assert said.text == "HelloHello"
    assert list(said.token_ids) == [*hello, *hello]
    assert chat.turn.stage is Stage.DECODE


@pytest.mark.parametrize(
    ("text", "stop", "shown"),
    [("I am so. not", "so. n", "I am "), ("one. two", "two", "one. "), ("Hi there", "there", "Hi ")],
    ids=["over the border of tokens", "at the very end", "one token"],
)
def test_stop_string_and_its_ids_are_never_shown(text: str, stop: str, shown: str) -> None:
    chat = Exchange()
    said = chat.answer(text, overrides=UnitOverrides(stop=(stop,)))
    assert said.text == shown
    assert chat.template.decode(said.token_ids) == shown.rstrip()
    assert list(said.token_ids) == chat.encode(text)[: len(said.token_ids)]
    assert (said.done.end, said.done.finish) == (End.TURN, Finish.STOP)


def test_overrides_hold_for_their_turn_only() -> None:
    chat = Exchange(sampling=Sampling(temperature=0.0, stop=("there",)))
    assert chat.answer("Hi there", overrides=UnitOverrides(stop=("z",))).text == "Hi there"
    assert chat.answer("Hi there").text.rstrip() == "Hi"


def test_characters_are_never_cut_and_one_that_the_end_cuts_is_left_out() -> None:
    chat, ids = Exchange(), Exchange().encode("so 🙂 good")
    said = chat.answer("so 🙂 good")
    assert said.text == "so 🙂 good"
    assert not any("\ufffd" in text for text in texts(said))
    assert list(said.token_ids) == ids
    whole = len(chat.encode("so 🙂"))
    assert whole > len(chat.encode("so")) + 2
    said = chat.answer("so 🙂", overrides=UnitOverrides(max_new_tokens=whole - 1))
    assert said.text in ("so", "so ")
    assert said.done.finish is Finish.LENGTH


def test_end_is_less_likely_with_a_length_penalty() -> None:
    chat = Exchange()
    scores = torch.zeros(VOCABULARY)
    scores[END], scores[40] = 10.0, 9.0
    for penalty, ended in ((1.0, True), (1.2, False)):
        chat.hear()
        chat.generate(UnitOverrides(length_penalty=penalty, max_new_tokens=5))
        chat.decide_on(scores)
        assert (chat.turn.stage is Stage.DECODE) is not ended
        if not ended:
            chat.decide(END)
        chat.finalize()


def test_repetition_counts_in_the_turn_only() -> None:
    chat = Exchange()
    for _ in range(2):
        chat.hear()
        chat.generate(UnitOverrides(repetition_penalty=1.5, max_new_tokens=5))
        scores = torch.zeros(VOCABULARY)
        scores[40], scores[41] = 10.0, 9.0
        said = chat.decide_on(scores)
        said = chat.decide_on(scores)
        assert said.token_ids == (40, 41)
        chat.decide(END)
        chat.finalize()


def test_seed_of_a_turn_holds_for_it_alone() -> None:
    def drawn(chat: Exchange, seed: int | None) -> list[int]:
        chat.hear()
        chat.generate(UnitOverrides(temperature=1.0, top_p=1.0, seed=seed, max_new_tokens=8))
        while chat.turn.wants_decision:
            chat.decide_on(torch.zeros(VOCABULARY))
        said = chat.turn.run.answer.tokens
        chat.finalize()
        return said

    seeded, other = Exchange(), Exchange()
    first, own = drawn(seeded, 5), drawn(seeded, None)
    assert drawn(other, None) == own
    assert drawn(other, 5) == first
    assert own != first


def test_cancel_before_the_answer() -> None:
    chat = Exchange()
    chat.hear()
    chat.turn.queue.cancel(1)
    said = chat.generate()
    assert (said.done.end, said.done.finish) == (End.CANCELLED, None)
    assert chat.finalize().closed.context_tokens == said.one(Prefilled).context_tokens


def test_cancel_stops_at_the_next_decision() -> None:
    chat = Exchange()
    begin(chat, *chat.encode("Hi"))
    chat.turn.queue.cancel(1)
    said = chat.decide(*chat.encode("x"))
    assert (said.done.end, said.text) == (End.CANCELLED, "Hi")


def test_unusable_input_fails_its_turn_alone() -> None:
    chat = Exchange()
    chat.hear(failure=UNUSABLE)
    chat.generate()
    said = chat.finalize()
    assert said.one(Prefilled).failure == UNUSABLE
    assert (said.done.end, said.done.failure) == (End.FAILED, UNUSABLE)
    assert chat.answer("Hi").done.end is End.TURN


def test_rejected_settings_fail_the_turn() -> None:
    chat = Exchange()
    chat.hear()
    refused = Failure("PARAMS_INVALID", "too hot", "run.sampling.temperature")
    chat.turn.queue.reject(1, refused)
    chat.turn.begin_generate()
    (done,) = [event for event in chat.turn.events if isinstance(event, Done)]
    assert (done.end, done.failure) == (End.FAILED, refused)


def test_bad_numbers_in_the_prompt_fail_the_turn_alone() -> None:
    chat = Exchange()
    chat.hear(poisoned=True)
    said = chat.generate()
    failure = said.one(Prefilled).failure
    assert failure is not None
    assert failure.reason == "INFERENCE_FAILED"
    assert said.done.end is End.FAILED
    chat.finalize()
    assert chat.answer("Hi").done.end is End.TURN


@pytest.mark.parametrize("poisoned", [True, False])
def test_bad_numbers_in_the_answer_fail_the_turn_alone(poisoned: bool) -> None:
    chat = Exchange()
    begin(chat)
    scores = torch.zeros(VOCABULARY) if poisoned else torch.full((VOCABULARY,), torch.nan)
    scores[40] = 10.0
    said = chat.decide_on(scores, poisoned=poisoned)
    assert said.done.end is End.FAILED
    assert said.done.failure is not None
    assert said.done.failure.retryable
    chat.finalize()
    assert chat.answer("Hi").done.end is End.TURN


def spoken(chat: Exchange, text: str, *, end: int = END) -> list[tuple[list[int], list[float], bool]]:
    """The groups of a spoken turn: ids, the rows whose hidden states they have, whether they may be short."""
    groups = []
    chat.hear(speaks=True)
    chat.generate()
    for token in [*chat.encode(text), end]:
        chat.decide(token)
        while chat.turn.stage is Stage.SPEAK:
            job = chat.turn.groups.job
            assert job is not None
            groups.append((list(job.tokens), job.hidden[:, 0].tolist(), job.may_be_short))
            chat.speak()
    return groups


def test_spoken_answer_is_said_in_groups_of_words_each_with_its_own_hidden_states() -> None:
    chat, text = Exchange(), " one two three four five six seven eight"
    groups = spoken(chat, text)
    # At most four words and sixteen characters each.
    said = [chat.template.decode(ids) for ids, _, _ in groups]
    assert said == [" one two three", " four five six", " seven eight"]
    rows = [row for _, hidden, _ in groups for row in hidden]
    assert rows == [float(i) for i in range(len(rows))]
    assert [token for ids, _, _ in groups for token in ids] == [*chat.encode(text), TURN_END]
    assert [may_be_short for _, _, may_be_short in groups] == [True, False, True]


def test_sound_follows_its_text_and_the_turn_ends_after_it() -> None:
    chat = Exchange()
    spoken(chat, " one two three four five six")
    said = chat.finalize()
    assert "".join(texts(said)) == "one two three four five six"
    assert said.samples == 2 * 25 * 960
    assert isinstance(said.events[-3], Piece)
    assert (said.done.end, said.done.usage.output_audio_tokens) == (End.TURN, 50)
    assert said.done.timings.speech > 0


def test_last_token_allowed_is_said_too() -> None:
    chat = Exchange()
    tokens = chat.encode(" one two")
    chat.hear(speaks=True)
    chat.generate(UnitOverrides(max_new_tokens=len(tokens)))
    chat.decide(*tokens)
    assert chat.turn.groups.job is not None
    assert chat.turn.groups.job.tokens == [*tokens, TURN_END]
    assert chat.turn.groups.job.hidden[:, 0].tolist() == [float(i) for i in range(len(tokens) + 1)]
    assert chat.speak().done.finish is Finish.LENGTH


def test_text_held_back_by_stop_string_is_not_spoken() -> None:
    chat = Exchange()
    chat.hear(speaks=True)
    chat.generate(UnitOverrides(stop=(" two",)))
    for token in chat.encode(" one two"):
        if chat.turn.wants_decision:
            chat.decide(token)
    assert chat.turn.groups.job is not None
    assert chat.turn.groups.job.tokens == [*chat.encode(" one"), TURN_END]


def test_answer_without_words_is_not_said() -> None:
    chat = Exchange()
    assert spoken(chat, "") == []
    assert chat.said.done.end is End.TURN


def test_turn_after_a_spoken_one_is_silent_or_begins_on_a_clean_voice() -> None:
    chat = Exchange()
    first = spoken(chat, " one two")
    chat.finalize()
    said = chat.answer("one two")
    assert (said.samples, said.done.usage.output_audio_tokens) == (0, 0)
    assert chat.turn.groups.speech.length == 0
    assert spoken(chat, " one two") == first


def test_cancel_stops_the_voice() -> None:
    chat = Exchange()
    chat.hear(speaks=True)
    chat.generate()
    tokens = chat.encode(" one two three four five six seven")
    for token in tokens:
        if chat.turn.wants_decision:
            chat.decide(token)
    assert chat.turn.stage is Stage.SPEAK
    chat.turn.queue.cancel(1)
    said = chat.speak()
    assert (said.done.end, said.samples) == (End.CANCELLED, 0)
    chat.finalize()
    assert chat.answer("Hi").text == "Hi"


def test_bad_numbers_of_the_voice_fail_the_turn_alone() -> None:
    chat = Exchange()
    chat.hear(speaks=True)
    chat.generate()
    chat.decide(*chat.encode(" one"), END)
    said = chat.speak(3, poisoned=True)
    assert (said.done.end, said.samples) == (End.FAILED, 0)
    chat.finalize()
    assert chat.answer("Hi").text == "Hi"
