"""Tests of the evaluation: its questions, its counts and its results file."""

import json
from pathlib import Path

import numpy as np
import pytest

from antiphon_training.corpus.voices import SAMPLE_RATE
from antiphon_training.domains.domain import Exchange, Split
from antiphon_training.domains.mini import Intent, split_of
from benchmarks.quality import chat
from benchmarks.quality.__main__ import put
from benchmarks.quality.chat import Asked, ChatCondition
from benchmarks.quality.dictation import DictationCondition, Utterance, Written, distance
from benchmarks.quality.report import CHAT_GOALS, ChatRow, DictationRow, tables
from benchmarks.quality.scoring import Score, Turn


def utterance(intent: Intent, words: str) -> Utterance:
    return Utterance(intent, words.split(), np.zeros(SAMPLE_RATE, np.float32))


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("what is your name", 0),
        ("what is the name", 1),
        ("what your name", 1),
        ("so what is your name now", 2),
        ("", 4),
        ("name your is what", 4),
    ],
)
def test_words_are_wrong_that_were_put_in_left_out_or_taken_for_others(said: str, wrong: int) -> None:
    assert distance("what is your name".split(), said.split()) == wrong


def test_in_domain_word_error_rate_excludes_out_of_domain_utterances() -> None:
    written = Written()
    written.add(utterance(Intent.NAME, "what is your name"), " what is your game")
    written.add(utterance(Intent.OUT_OF_DOMAIN, "they sold it"), "")
    assert written.total(in_domain=True).rate == 0.25
    assert written.total(in_domain=False).rate == 1.0
    assert written.wrong == [("what is your name", "what is your game"), ("they sold it", "")]


def test_a_conversation_asks_held_out_questions_and_has_no_more_than_three() -> None:
    talks = chat.talks(ChatCondition.TEXT, 28, seed=1)
    asked = [question for talk in talks for question in talk.asked]
    assert len(asked) == 28
    assert max(len(talk.asked) for talk in talks) == 3
    assert {split_of(question.exchange.question) for question in asked} == {Split.HELD_OUT}
    assert len({question.exchange.intent for question in asked}) == 14

    first, second = (chat.talks(ChatCondition.PICTURE, 6, seed=2) for _ in range(2))
    assert first == second, "the same seed asks the same"
    assert all(question.parts[0].image.data for talk in first for question in talk.asked)


def test_a_third_of_the_questions_are_for_the_tool_where_one_is_offered() -> None:
    talks = chat.talks(ChatCondition.TOOL, 84, seed=3)
    asked = [(talk, question) for talk in talks for question in talk.asked]
    requests = [it for _, it in asked if it.exchange.intent == Intent.LIGHT]
    assert 0.25 < len(requests) / len(asked) < 0.4
    for request in requests:
        call, _, answer = request.exchange.reply.rpartition(": ")
        assert call in ('set_light {"state": "on"}', 'set_light {"state": "off"}')
        assert "the light is" in answer
    offered = [{tool.name for tool in talk.tools} for talk, _ in asked]
    assert all("set_light" in names for names in offered)
    assert {len(names) for names in offered} == {1, 2}


def answered(reply: str, said: str) -> tuple[Asked, Turn]:
    return Asked(Exchange(Intent.STOP, "stop", reply), ()), Turn(1, said)


def test_only_the_exact_answer_is_right_and_a_missed_bar_is_named() -> None:
    score = Score()
    right = chat.add(score, [answered("okay", "okay"), answered("okay", "okay then")])
    assert [turn.text for _, turn in right] == ["okay"]
    assert score.right == 0.5
    row = ChatRow(ChatCondition.TEXT, score)
    assert row.missed() == [f"MISSED (chat: text): right 0.500 is below {CHAT_GOALS[ChatCondition.TEXT]}"]


def test_there_is_a_table_for_each_kind_of_row() -> None:
    written = Written()
    written.add(utterance(Intent.NAME, "who are you"), "who are you")
    text = tables([ChatRow(ChatCondition.CLIP, Score()), DictationRow(DictationCondition.UNSEEN, written)])
    assert "| chat: clips | 0 | 0.000 |  |" in text
    assert "| transcription: unseen voices | 1 | 3 | 0.000 | 0.000 |" in text


def test_figures_take_the_place_of_those_of_their_condition(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    kept = [{"condition": "plain", "right": 0.9}, {"condition": "chat: clips", "right": 0}]
    path.write_text(json.dumps(kept))
    put(path, [ChatRow(ChatCondition.CLIP, Score()), ChatRow(ChatCondition.TEXT, Score())])
    rows = json.loads(path.read_text())
    assert [row["condition"] for row in rows] == ["plain", "chat: text", "chat: clips"]
    assert rows[2]["questions"] == 0
