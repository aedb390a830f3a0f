"""Events for the transcript of a user's item."""

from ws_adapter.protocol.core.actions import Send
from ws_adapter.protocol.core.transcription import (
    InputTranscript,
    InputTranscriptDelta,
    InputTranscriptDone,
    InputTranscriptFailed,
)
from ws_adapter.protocol.realtime_ga.wire import events
from ws_adapter.protocol.realtime_ga.wire.event_factory import EventFactory


def transcript_event(factory: EventFactory, item_id: str, news: InputTranscript) -> Send:
    """Return the event for a transcription result of an item."""
    match news:
        case InputTranscriptDelta(text=text):
            return factory.event(events.TranscriptionDelta, item_id=item_id, content_index=0, delta=text)
        case InputTranscriptDone(text=text, seconds=seconds):
            return factory.event(
                events.TranscriptionCompleted,
                item_id=item_id,
                content_index=0,
                transcript=text,
                usage=events.Duration(seconds=seconds),
            )
        case InputTranscriptFailed(code=code, message=message):
            kind = "server_error" if code.is_servers else "invalid_request_error"
            failure = events.Failure(type=kind, code=code, message=message)
            return factory.event(events.TranscriptionFailed, item_id=item_id, content_index=0, error=failure)
