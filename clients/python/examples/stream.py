"""Send text in chunks to a worker: `python stream.py 127.0.0.1:50051 "Once upon" " a time"`."""

import asyncio
import sys

from antiphon.grpc import Finalized, Prefilled, Session, Text, UnitDone
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb


async def feed(target: str, *chunks: str) -> None:
    sampling = common.SamplingParams(max_new_tokens=4, temperature=0.0)
    config = pb.SessionConfig(mode=pb.SESSION_MODE_TOKENS, sampling=sampling)
    async with Session.open(target, config) as session:
        for chunk in chunks:  # at most 8, or read at the same time: chunks queue in order
            await session.send_chunk(chunk)
        session.half_close()
        async for output in session:
            match output:
                case Prefilled(unit=unit, error=error) if error:
                    print(f"{unit}: {error.message}")
                case Text(unit=unit, text=text, token_ids=ids):
                    print(f"{unit}: {text!r} {list(ids)}")
                case UnitDone(unit=unit, finish=finish):
                    print(f"{unit}: ended by {finish}")
                case Finalized(unit=unit, context_tokens=tokens, discarded_tokens=discarded):
                    print(f"{unit}: {tokens} tokens of context, {discarded} discarded")


asyncio.run(feed(*sys.argv[1:]))
