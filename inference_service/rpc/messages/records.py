"""Checks of unit records that a caller replays, before the engine gets them."""

from antiphon.contract import Reason
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.config.sampling import unknown_id_problem
from inference_service.errors import UnitRefused
from inference_service.interface.engine import End, ModelInfo
from inference_service.interface.setups import (
    ChatSetup,
    DuplexSetup,
    SessionSetup,
    UnitRecord,
)

MOST_BYTES = 4096
"""Limit of bytes of one record."""
_MOST_DRAWS = 1 << 48
"""Limit of random numbers that a session has used up; a century uses fewer."""
_ENDS = {
    pb.UNIT_END_LISTEN: End.LISTEN,
    pb.UNIT_END_CHUNK: End.CHUNK,
    pb.UNIT_END_TURN: End.TURN,
    pb.UNIT_END_CANCELLED: End.CANCELLED,
}


def check_record(record: pb.UnitRecord, setup: SessionSetup, info: ModelInfo) -> None:
    """Raise `UnitRefused` for a record that no unit of such a session can have."""
    if isinstance(setup, ChatSetup) and setup.records:
        _check_begun(record, info)
        return
    if not isinstance(setup, DuplexSetup) or not setup.records:
        why = "this session has no `records`, so that no unit can be replayed"
        raise UnitRefused(Reason.CONTENT_UNSUPPORTED, f"recorded: {why}.", "recorded")
    problem: str | None
    if (size := record.ByteSize()) > MOST_BYTES:
        raise _bad("", f"has {size} bytes; at most {MOST_BYTES} are taken")
    if record.end not in _ENDS:
        raise _bad("end", "must be LISTEN, CHUNK, TURN or CANCELLED")
    most = setup.duplex.max_new_speak_tokens_per_chunk + 1
    if len(record.sampled_ids) > most:
        raise _bad("sampled_ids", f"has {len(record.sampled_ids)} ids; a unit has at most {most}")
    if problem := unknown_id_problem(tuple(record.sampled_ids), info.vocabulary):
        raise _bad("sampled_ids", problem)
    codes = info.codes_per_unit if setup.duplex.generate_audio else 0
    if len(record.speech_codes) > codes:
        raise _bad("speech_codes", f"has {len(record.speech_codes)} codes; a unit has at most {codes}")
    if record.speech_codes and max(record.speech_codes) >= info.speech_codes:
        raise _bad("speech_codes", f"must be below {info.speech_codes}, not {max(record.speech_codes)}")
    if len(record.word_ids) > info.words_per_unit:
        raise _bad("word_ids", f"has {len(record.word_ids)} ids; a unit has at most {info.words_per_unit}")
    if problem := unknown_id_problem(tuple(record.word_ids), info.vocabulary):
        raise _bad("word_ids", problem)
    for name in ("text_draws", "speech_draws"):
        if getattr(record, name) > _MOST_DRAWS:
            raise _bad(name, f"must be at most {_MOST_DRAWS}, not {getattr(record, name)}")


def unit_record(record: pb.UnitRecord) -> UnitRecord:
    """Return a checked record as the engine takes it."""
    return UnitRecord(
        _ENDS[record.end],
        tuple(record.sampled_ids),
        tuple(record.speech_codes),
        record.text_draws,
        record.speech_draws,
        tuple(record.word_ids),
    )


def _check_begun(record: pb.UnitRecord, info: ModelInfo) -> None:
    """Raise `UnitRefused` for ids that cannot begin an answer."""
    if record.end:
        raise _bad("end", "must be unset in CHAT: an answer that has ended does not go on")
    if len(record.sampled_ids) > info.context_limit:
        raise _bad(
            "sampled_ids", f"has {len(record.sampled_ids)} ids; the context has {info.context_limit} tokens"
        )
    if problem := unknown_id_problem(tuple(record.sampled_ids), info.vocabulary):
        raise _bad("sampled_ids", problem)
    if record.speech_codes:
        raise _bad("speech_codes", "must be empty in CHAT")
    if record.word_ids:
        raise _bad("word_ids", "must be empty in CHAT")


def _bad(name: str, problem: str) -> UnitRefused:
    path = f"recorded.{name}" if name else "recorded"
    return UnitRefused(Reason.PARAMS_INVALID, f"{path} {problem}.", path)
