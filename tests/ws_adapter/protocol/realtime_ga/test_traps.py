"""What servers of this protocol are known to get wrong, and the tests that hold each."""

from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parents[3]
HERE: Final = "ws_adapter/protocol/realtime_ga"
HANDSHAKE: Final = "ws_adapter/server/test_openai_handshake.py"

TRAPS: Final = {
    "1 the subprotocol is answered with the key": (HANDSHAKE, "trap_1_the_subprotocol"),
    "2 the session is not the first event": (HANDSHAKE, "trap_2_the_session_is_the_first_event"),
    "3 null where a value is absent": (f"{HERE}/test_items.py", "nothing_absent_is_null"),
    "4 keys of a response are missing": (f"{HERE}/test_responses.py", "a_spoken_response_climbs"),
    "5 interrupt_response is not echoed": (f"{HERE}/test_settings.py", "interrupt_response_is_always"),
    "6 speech_started names another item": (f"{HERE}/test_turns.py", "a_turn_is_heard_committed"),
    "7 no response.done after a failure": (f"{HERE}/test_responses.py", "a_failure_is_an_error_and_still"),
    "7 no response.done after a cancel": (f"{HERE}/test_responses.py", "a_cancel_ends_the_response"),
    "8 deltas after response.done": (f"{HERE}/test_responses.py", "no_deltas_after_the_end"),
    "8 deltas after speech_started": (f"{HERE}/test_turns.py", "speech_over_an_answer_stops_it"),
    "9 truncate of what is spoken fails": (f"{HERE}/test_items.py", "an_answer_can_be_truncated_while"),
    "9 truncate of what is done fails": (f"{HERE}/test_items.py", "a_truncated_answer_keeps"),
    "10 retrieve is not served": (f"{HERE}/test_items.py", "a_models_sound_is_returned"),
    "11 results before response.done": (f"{HERE}/test_responses.py", "what_came_of_a_call_may_come_before"),
    "12 a commit of 99 ms": (f"{HERE}/test_items.py", "99_ms_are_too_short"),
    "13 out of band blocks": (f"{HERE}/test_responses.py", "a_response_outside_the_conversation_does_not"),
    "13 out of band joins": (f"{HERE}/test_responses.py", "a_response_outside_the_conversation_joins"),
    "14 half of an update": (f"{HERE}/test_settings.py", "a_wrong_field_refuses_the_whole_update"),
    "15 items are created and added": (f"{HERE}/test_items.py", "items_are_added_and_never_created"),
    "16 junk in base64": (f"{HERE}/test_items.py", "a_frame_that_holds_no_event"),
    "17 half a sample": (f"{HERE}/test_sound.py", "half_a_sample_waits"),
    "18 G.711 without a low-pass": (f"{HERE}/test_sound.py", "g711_output_is_filtered"),
    "19 errors without the client's id": (f"{HERE}/test_responses.py", "cancelling_nothing_is_said"),
    "20 unsent audio without a bound": (f"{HERE}/test_responses.py", "what_the_client_does_not_read"),
    "21 the model's own name is refused": (f"{HERE}/test_settings.py", "what_unmodified_clients_send"),
    "22 a bad key is told by 401": (HANDSHAKE, "trap_22_a_bad_key_is_told"),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_trap_has_its_test(trap: str) -> None:
    file, name = TRAPS[trap]
    assert f"def test_{name}" in (TESTS / file).read_text()
