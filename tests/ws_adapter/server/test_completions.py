"""`POST /v1/chat/completions` with OpenAI's SDK, and with bytes that no SDK sends."""

import asyncio
import base64
import io
import json
import wave
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from inference_service.interface.engine import End
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import (
    EVERYTHING,
    ScriptedEngine,
    fails,
    hang,
    speak,
    turn_end,
    write,
)
from tests.ws_adapter.support.conversation import CLOSE, append
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.stage import Stage, serving, until
from tests.ws_adapter.web.test_tls import Authority
from ws_adapter.server import listener

ASK: Any = [{"role": "user", "content": "Name a prime."}]
ASKED: Any = {"model": "scripted", "messages": ASK}
PATH = "/v1/chat/completions"


@asynccontextmanager
async def served(
    engine: ScriptedEngine | None = None, slots: int = 1, **options: Any
) -> AsyncIterator[Stage]:
    engine = engine or ScriptedEngine(write("Sev", "en."), slots=slots, info=EVERYTHING, repeat=True)
    async with serving(engine, **options) as stage:
        yield stage
        await stage.until(free_slots=slots)


def client_of(stage: Stage, key: str = "none") -> AsyncOpenAI:
    return AsyncOpenAI(api_key=key, base_url=f"{stage.address}/v1", max_retries=0, timeout=PATIENCE_S)


async def test_whole_answer_is_a_chat_completion_and_can_be_sent_back() -> None:
    async with served() as stage, client_of(stage) as client:
        answer = await client.chat.completions.create(**ASKED)
        history = [*ASK, answer.choices[0].message.model_dump(), *ASK]
        second = await client.chat.completions.create(model="scripted", messages=history)

        assert answer.choices[0].message.content == second.choices[0].message.content == "Seven."
        assert answer.choices[0].finish_reason == "stop"
        assert answer.model == "scripted"
        assert answer.usage is not None
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
        assert answer._request_id


async def test_spoken_answer_is_a_wav_file_or_pieces_of_pcm16() -> None:
    engine = ScriptedEngine(turn_end("Seven.", seconds=0.5), info=EVERYTHING, repeat=True, slots=1)
    audio: Any = {"voice": "alloy", "format": "wav"}
    asked: Any = {**ASKED, "modalities": ["text", "audio"]}
    async with served(engine) as stage, client_of(stage) as client:
        whole = await client.chat.completions.create(**asked, audio=audio)
        stream = await client.chat.completions.create(
            **asked, audio={**audio, "format": "pcm16"}, stream=True
        )
        deltas: list[Any] = [chunk.choices[0].delta async for chunk in stream]

        message = whole.choices[0].message
        assert message.content is None
        assert message.audio is not None
        assert message.audio.transcript == "Seven."
        with wave.open(io.BytesIO(base64.b64decode(message.audio.data))) as file:
            assert (file.getframerate(), file.getnchannels(), file.getnframes()) == (24_000, 1, 12_000)
        heard = [delta.audio for delta in deltas if getattr(delta, "audio", None)]
        pcm = b"".join(base64.b64decode(audio.data or "") for audio in heard)
        assert len(pcm) == 2 * 12_000
        assert "".join(audio.transcript or "" for audio in heard) == "Seven."


async def test_settings_reach_the_worker() -> None:
    engine = ScriptedEngine(write("Seven."), info=EVERYTHING, repeat=True, slots=1)
    async with served(engine) as stage, client_of(stage) as client:
        given: Any = {"seed": 7, "stop": ["x", "yz"], "temperature": 0.5, "top_p": 0.25}
        await client.chat.completions.create(**ASKED, max_completion_tokens=9, **given)

        session = engine.session
        arrived = session.overrides[1]
        assert (arrived.stop, arrived.temperature, arrived.top_p) == (("x", "yz"), 0.5, 0.25)
        assert arrived.max_new_tokens == 9
        assert session.setup.seed == 7


def showing(url: str) -> Any:
    return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]


async def test_unsupported_parameter_is_rejected_by_name() -> None:
    spoken = ["text", "audio"]
    refused: list[tuple[Any, str]] = [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"store": True}, "store"),
        ({"response_format": {"type": "json_object"}}, "response_format.type"),
        ({"top_k": 5}, "top_k"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens"),
        ({"modalities": spoken}, "audio"),
        ({"modalities": spoken, "audio": {"voice": "alloy", "format": "mp3"}}, "audio.format"),
        ({"modalities": spoken, "audio": {"voice": "nobody", "format": "wav"}}, "audio.voice"),
        ({"messages": []}, "messages"),
        ({"messages": showing("http://a/b")}, "messages[0].content[0].image_url.url"),
        ({"messages": showing("data:,AAAA")}, "messages[0].content[0].image_url.url"),
    ]
    async with served() as stage, client_of(stage) as client:
        for fields, param in refused:
            body = json.dumps({**ASKED, **fields}).encode()
            status, _, told = await stage.request(PATH, "POST", None, body)
            assert (status, told["error"]["param"]) == (400, param), told
            assert told["error"]["type"] == "invalid_request_error"
            assert param in told["error"]["message"]
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.chat.completions.create(model="gpt-9", messages=ASK)
        assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
        with pytest.raises(openai.BadRequestError) as speech:
            await client.audio.speech.create(model="scripted", voice="alloy", input="Seven.")
        assert speech.value.param == "model"
        status, headers, _ = await stage.request(PATH)
        assert (status, headers["allow"].upper()) == (405, "POST")


async def test_values_that_ask_for_nothing_are_taken() -> None:
    async with served() as stage, client_of(stage) as client:
        idle: Any = {
            "n": 1,
            "logprobs": False,
            "frequency_penalty": 0,
            "presence_penalty": 0.0,
            "store": False,
        }
        named: Any = {"user": "somebody", "metadata": {"a": "b"}, "response_format": {"type": "text"}}
        answer = await client.chat.completions.create(
            model="scripted", messages=ASK, service_tier="auto", **idle, **named
        )

        assert answer.choices[0].message.content == "Seven."


async def test_inference_that_fails_is_an_error_before_a_stream_and_in_it() -> None:
    engine = ScriptedEngine(fails(), info=EVERYTHING, repeat=True, slots=1)
    async with served(engine) as stage, client_of(stage) as client:
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(**ASKED)
        with pytest.raises(openai.APIError, match="could not process"):
            async for _ in await client.chat.completions.create(**ASKED, stream=True):
                pass


async def test_key_is_needed_and_its_rights_count(tmp_path: Any) -> None:
    keys = KeyFile(tmp_path / "keys", "alice")
    keys.add("duplex", modes="audio")
    keys.add("other", models="other")
    async with served(auth="keys", keys=keys.path) as stage:
        async with client_of(stage, keys.secrets["alice"]) as client:
            await client.chat.completions.create(**ASKED)
        async with client_of(stage, "wrong") as client:
            with pytest.raises(openai.AuthenticationError) as denied:
                await client.chat.completions.create(**ASKED)
            assert denied.value.code == "invalid_api_key"
        async with client_of(stage, keys.secrets["duplex"]) as client:
            with pytest.raises(openai.PermissionDeniedError):
                await client.chat.completions.create(**ASKED)
        async with client_of(stage, keys.secrets["other"]) as client:
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(**ASKED)


async def test_full_queue_is_rejected_with_retry_after() -> None:
    engine = ScriptedEngine(hang("generate"), info=EVERYTHING, repeat=True, slots=1)
    async with served(engine, queue_capacity=1) as stage, client_of(stage) as client:
        first = asyncio.create_task(client.chat.completions.create(**ASKED))
        await until(lambda: engine.sessions and engine.session.given)
        second = asyncio.create_task(client.chat.completions.create(**ASKED))
        await stage.until_queue(1)
        with pytest.raises(openai.RateLimitError) as full:
            await client.chat.completions.create(**ASKED)

        assert full.value.code == "queue_full"
        assert int(full.value.response.headers["Retry-After"]) > 0
        second.cancel()
        await stage.until_queue(0)
        first.cancel()
        await asyncio.gather(first, second, return_exceptions=True)


@pytest.mark.parametrize("streams", [False, True])
async def test_client_that_leaves_frees_its_slot(streams: bool) -> None:
    engine = ScriptedEngine(hang("generate"), info=EVERYTHING, repeat=True, slots=1)
    async with served(engine) as stage, client_of(stage) as client:

        async def ask() -> None:
            answer = await client.chat.completions.create(**ASKED, stream=streams)
            async for _ in answer:
                pass

        asking = asyncio.create_task(ask())
        await until(lambda: engine.sessions and engine.session.given)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await stage.until(free_slots=1)
        assert engine.session.is_closed


def head(size: int, *fields: str) -> bytes:
    return "\r\n".join(
        [f"POST {PATH} HTTP/1.1", "Host: localhost", f"Content-Length: {size}", *fields, "", ""]
    ).encode()


async def status_of(reader: asyncio.StreamReader) -> int:
    async with asyncio.timeout(PATIENCE_S):
        return int((await reader.readline()).split()[1])


BODY = json.dumps(ASKED).encode()


async def test_body_is_refused_by_its_head_and_what_follows_it_is_ignored() -> None:
    chunked = head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    async with served() as stage:
        for data, status in (
            (head(2**30), 413),
            (chunked + b"5\r\nabcde\r\n0\r\n\r\n", 411),
            (head(len(BODY)) + BODY + b"GET / HTTP/1.1\r\n\r\n", 200),
        ):
            reader, writer = await stage.opened(data)
            assert await status_of(reader) == status
            writer.transport.abort()


async def test_body_byte_by_byte_is_read() -> None:
    async with served() as stage:
        reader, writer = await stage.opened(head(len(BODY)))
        for at in range(len(BODY)):
            writer.write(BODY[at : at + 1])
            await writer.drain()
            await asyncio.sleep(0)
        assert await status_of(reader) == 200
        writer.transport.abort()


async def test_incomplete_body_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "BODY_TIMEOUT_S", 0.2)
    async with served() as stage:
        reader, writer = await stage.opened(head(len(BODY)) + BODY[:10])
        assert await status_of(reader) == 408
        writer.transport.abort()


async def test_client_with_expect_header_gets_100_continue() -> None:
    async with served() as stage:
        reader, writer = await stage.opened(head(len(BODY), "Expect: 100-continue"))
        assert await status_of(reader) == 100
        writer.write(BODY)
        async with asyncio.timeout(PATIENCE_S):
            assert b"200 OK" in await reader.read()
        writer.transport.abort()


async def test_body_that_is_no_request_is_one_error_and_one_that_is_cut_off_costs_nothing() -> None:
    deep = (b"[" * 100_000, b'{"messages":' * 50_000)
    async with served() as stage:
        for body in (b"", b"[]", b"\xff\xfe", *deep, b'{"model": 5}', b"{}"):
            reader, writer = await stage.opened(head(len(body)) + body)
            async with asyncio.timeout(PATIENCE_S):
                told = await reader.read()
            assert told.startswith(b"HTTP/1.1 400 "), body[:20]
            assert json.loads(told.partition(b"\r\n\r\n")[2])["error"]["message"]
            writer.transport.abort()
        for size in (0, 1, len(BODY) - 1):
            _, writer = await stage.opened(head(len(BODY)) + BODY[:size])
            await writer.drain()
            writer.transport.abort()
            assert (await stage.request(PATH, "POST", None, BODY))[0] == 200


async def test_requests_beyond_capacity_leave_a_conversation_alone() -> None:
    engine = ScriptedEngine(write("Seven."), info=EVERYTHING, repeat=True, slots=2)
    async with served(engine, slots=2, queue_capacity=10) as stage:
        async with stage.client() as neighbour:
            await neighbour.begin()
            crowd = asyncio.gather(*(stage.request(PATH, "POST", None, BODY) for _ in range(100)))
            for number in range(20):
                await neighbour.send(append(input_id=f"in-{number}"))
                while (event := await neighbour.next()).get("input_id") != f"in-{number}":
                    assert event["type"] == "response.output.delta"
            statuses = [status for status, _, _ in await crowd]
            await neighbour.send(CLOSE)
            await neighbour.expect_until("session.closed")

        assert set(statuses) <= {200, 429}
        assert statuses.count(200) >= 1
        assert len(statuses) == 100


async def test_client_that_does_not_read_its_stream_frees_its_slot() -> None:
    engine = ScriptedEngine(speak(*["word"] * 20, seconds=600.0, end=End.TURN), info=EVERYTHING, slots=1)
    async with served(engine, slow_consumer_s=0.2) as stage:
        spoken = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "pcm16"}}
        body = json.dumps({**ASKED, "stream": True, **spoken}).encode()
        reader, writer = await stage.opened(head(len(body)) + body)
        assert await status_of(reader) == 200
        writer.transport.pause_reading()
        await stage.until(free_slots=1)
        writer.transport.abort()


async def test_answer_over_tls_is_the_same(tmp_path: Any) -> None:
    authority = Authority(tmp_path)
    tls: Any = {"tls_cert": authority.certificate, "tls_key": authority.key, "tls_port": 0}
    async with served(**tls) as stage, DefaultAsyncHttpxClient(verify=authority.trust) as transport:
        client = AsyncOpenAI(
            api_key="none", base_url=f"{stage.tls_address}/v1", max_retries=0, http_client=transport
        )
        whole = await client.chat.completions.create(**ASKED)
        stream = await client.chat.completions.create(
            **ASKED, stream=True, stream_options={"include_usage": True}
        )
        *chunks, last = [chunk async for chunk in stream]
        pieces = [chunk.choices[0].delta.content or "" for chunk in chunks]

        assert whole.choices[0].message.content == "".join(pieces) == "Seven."
        assert chunks[-1].choices[0].finish_reason == "stop"
        assert last.usage is not None
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="gpt-9", messages=ASK)


async def test_server_that_ends_ends_its_requests() -> None:
    engine = ScriptedEngine(hang("generate"), info=EVERYTHING, repeat=True, slots=1)
    async with serving(engine) as stage:
        reader, writer = await stage.opened(head(len(BODY)) + BODY)
        _, other = await stage.opened(head(len(BODY)) + BODY[:5])
        await other.drain()
        await until(lambda: engine.sessions and engine.session.given)
        stage.adapter.interrupt()
        stage.adapter.interrupt()
        async with asyncio.timeout(PATIENCE_S):
            told = await reader.read()
        writer.transport.abort()
        other.transport.abort()
    assert b"shutting down" in told
