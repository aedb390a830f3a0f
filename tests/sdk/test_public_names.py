"""Tests of the public API: adding a name is a decision, losing one is a breaking change."""

import inspect

import antiphon
import antiphon.grpc

SDK = set(
    """
    Answer AntiphonError AudioDelta AudioError AuthError Call CallDelta CallTimeout ChatEvent ChatTurn
    Client Clip Closed ConnectError ConnectionLost Created DuplexConfig DuplexSession ErrorEvent Event
    FileStream GenerationConfig INPUT_RATE_HZ Image ImageConfig ImageError Interrupted Listening Message
    Microphone Moved OUTPUT_RATE_HZ Part Prefilled ProtocolError QueueFull Queued ReplayError
    ResumeOffer Resumed Retry SessionClosed Speaker Speech TextDelta ThinkingDelta Tool Transcript
    TranscriptionEvent TranscriptionSession TurnEnd Video VideoError connect read_audio read_wav sync
    write_wav
    """.split()
)
GRPC = set(
    """
    Audio CallDelta Finalized Finish GoAway Journal Lease Output Place Prefilled Ready Session Text
    Thinking UnitDone UnitEnd UnitError acquire get_info
    """.split()
)


def test_sdk_exports_exactly_its_public_names() -> None:
    assert set(antiphon.__all__) == SDK
    assert all(hasattr(antiphon, name) for name in SDK)


def test_grpc_package_exports_exactly_its_public_names() -> None:
    assert set(antiphon.grpc.__all__) == GRPC
    assert all(hasattr(antiphon.grpc, name) for name in GRPC)


def test_grpc_package_does_not_hide_the_library_of_that_name() -> None:
    import grpc

    assert grpc is not antiphon.grpc
    assert hasattr(grpc, "aio")


def test_everything_public_is_documented() -> None:
    for module in (antiphon, antiphon.grpc):
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                assert thing.__doc__, name
