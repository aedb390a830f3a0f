"""The settings of a response: those of the session, and those that differ in this response."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from msgspec import structs

from ws_adapter.protocol.core.config import DEFAULT_PROMPT, Catalogue
from ws_adapter.protocol.core.turn import Generation, Message, Turn
from ws_adapter.protocol.realtime_ga.client_items import read_item
from ws_adapter.protocol.realtime_ga.conversation import (
    MOST_BYTES,
    Conversation,
    Entry,
    messages_of,
    without_calls,
)
from ws_adapter.protocol.realtime_ga.response import ResponseSettings
from ws_adapter.protocol.realtime_ga.settings import (
    Settings,
    check_voice,
    format_of,
    name_of,
    voice_of,
)
from ws_adapter.protocol.realtime_ga.wire.client_events import ResponseFields
from ws_adapter.protocol.realtime_ga.wire.events import Code
from ws_adapter.protocol.realtime_ga.wire.fields import MAX_TOKENS, ResponseOutputFields
from ws_adapter.protocol.realtime_ga.wire.items import ItemReference
from ws_adapter.protocol.realtime_ga.wire.refusals import Denied
from ws_adapter.protocol.realtime_ga.wire.tools import read_choice, read_tools
from ws_adapter.protocol.wire.errors import invalid

NOTHING_DIFFERENT: Final = ResponseFields()

_NOTHING_SAID: Final = (Message("system", (DEFAULT_PROMPT,)),)
"""The input of a model if the conversation is empty."""


def read_input(given: ResponseFields, settings: Settings, conversation: Conversation) -> list[Message] | None:
    """Return the input of a response that replaces the conversation; None for the conversation. Raises
    `Refusal`."""
    if given.input is None:
        return None
    entries: list[Entry] = []
    for i, item in enumerate(given.input):
        path = f"response.input[{i}]"
        if isinstance(item, ItemReference):
            entries.append(conversation.find(item.id or "", Code.INVALID_VALUE, f"{path}.id"))
        else:
            entries.append(read_item(item, "", settings.input_format, settings.abilities, path))
    if sum(entry.size for entry in entries) > MOST_BYTES:
        most = f"{MOST_BYTES // 2**20} MiB of text, pictures and clips as float32 at 16 kHz"
        raise invalid("response.input", f"expected at most {most}, got more")
    return messages_of(entries)


def response_settings(
    given: ResponseFields,
    told: Iterable[Message] | None,
    settings: Settings,
    conversation: Conversation,
    catalogue: Catalogue | None,
    *,
    has_spoken: bool,
) -> ResponseSettings:
    """Return the settings of a response. Raises `Refusal`.

    `told` is the result of `read_input`. `has_spoken`: the session keeps its voice.
    """
    if given.prompt is not None:
        raise invalid("response.prompt", "expected null: no prompts are stored here")
    output = (given.audio.output if given.audio is not None else None) or ResponseOutputFields()
    path = "response.audio.output.voice"
    check_voice(output.voice, settings.model, catalogue, path)
    voice = name_of(output.voice) or settings.voice_name
    is_out_of_band = given.conversation == "none"
    if has_spoken and voice != settings.voice_name and not is_out_of_band:
        raise Denied(Code.CANNOT_UPDATE_VOICE, f"{path}: the model has spoken: it keeps its voice", path)
    modality = given.output_modalities[0] if given.output_modalities else settings.modality
    if not settings.abilities.speaks:
        modality = "text"
    most = given.max_output_tokens or settings.max_output_tokens
    fields = settings.fields
    offered = fields.tools if given.tools is None else given.tools
    calls_tools = settings.abilities.calls_tools
    tools = read_tools(offered or (), "response.tools", calls_tools=calls_tools)
    choice = given.tool_choice or (fields.tool_choice if given.tools is None else None) or "auto"
    if not tools and given.tool_choice is None:
        choice = "auto"
    chosen = read_choice(choice, tools, "response.tool_choice", calls_tools=calls_tools)
    parallel = fields.parallel_tool_calls if given.parallel_tool_calls is None else given.parallel_tool_calls
    instructions = settings.instructions if given.instructions is None else given.instructions
    turn = Turn(
        messages=(),
        generation=Generation(MAX_TOKENS if most == "inf" else int(most), temperature=None, top_p=None),
        speaks=modality == "audio",
        tools=tools,
        tool_choice=chosen,
        parallel_tool_calls=parallel is not False,
    )

    def turn_of(messages: Iterable[Message]) -> Turn:
        if not calls_tools:
            messages = without_calls(messages)
        beginning = [Message("system", (instructions,))] if instructions else []
        return structs.replace(turn, messages=(*beginning, *messages) or _NOTHING_SAID)

    def shorter() -> Turn | None:
        ratio = settings.retention_ratio
        if told is not None or ratio is None or not conversation.shorten(ratio):
            return None
        return turn_of(conversation.messages())

    return ResponseSettings(
        turn=turn_of(conversation.messages() if told is None else told),
        setup=replace(settings.setup, voice=voice_of(voice)),
        modality=modality,
        format=format_of(output.format or settings.output.format),
        voice=voice,
        max_output_tokens=most,
        conversation=None if is_out_of_band else conversation,
        metadata=given.metadata,
        shorter=shorter,
    )
