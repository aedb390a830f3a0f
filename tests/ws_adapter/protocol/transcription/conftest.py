"""Conversations of `/v1/transcription` in the states that most tests begin with."""

import pytest

from tests.ws_adapter.support.transcription_conversation import TranscriptionConversation as Talk


@pytest.fixture
def talk() -> Talk:
    return Talk()


@pytest.fixture
def begun(talk: Talk) -> Talk:
    """An utterance of one second is at a worker."""
    talk.begin()
    return talk
