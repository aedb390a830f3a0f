"""A session leaves the worker where it was, however many units it has: what lives is counted, not memory."""

import gc
from collections import Counter
from dataclasses import replace

import numpy as np
import torch

from antiphon.grpc import Session
from antiphon.grpc.outputs import Audio, Finalized
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.engine.engine import MOST_TICKS, LiveEngine
from inference_service.families import antiphon_mini
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.interface.engine import Deliver, Engine, OnFatal
from inference_service.options import WorkerOptions
from tests.inference_service.engine.support import tiny
from tests.inference_service.support.caller import until
from tests.support.long import long
from tests.support.scripted_engine import running_worker

WARM_UP, UNITS = 20, 60
SLACK = UNITS // 2
"""Objects of a type that come and go: answers, tasks, timers. One a unit would be twice as many."""
CONFIG = pb.SessionConfig(mode=pb.SESSION_MODE_AUDIO)
CONFIG.duplex.force_listen_count = 0
CONFIG.duplex.text_repetition_window_size = 16


def load(options: WorkerOptions, deliver: Deliver, on_fatal: OnFatal) -> Engine:
    """A tiny model that hears and speaks, with a window of a few units."""
    model, tokenizer, config = tiny.model()
    config = replace(config, context_limit=1024, window_high=128, window_low=96)
    return LiveEngine(
        DuplexRuntime(antiphon_mini.components(model, tokenizer, config), 1), 1, deliver, on_fatal
    )


def living() -> tuple[Counter[str], int]:
    """Objects by type, and bytes of tensors and arrays among them."""
    gc.collect()
    things = gc.get_objects()
    storages = {
        thing.untyped_storage().data_ptr(): thing.untyped_storage().nbytes()
        for thing in things
        if type(thing) is torch.Tensor
    }
    return Counter(type(thing).__qualname__ for thing in things), sum(storages.values())


@long
async def test_a_session_of_many_units_leaves_no_more_than_one_of_few() -> None:
    noise = np.random.default_rng(1).uniform(-0.3, 0.3, (8, 16_000)).astype(np.float32)
    dropped = spoken = 0
    async with running_worker(load) as worker, Session.open(worker.address, CONFIG) as session:
        outputs, found = aiter(session), []
        for number in range(1, WARM_UP + UNITS + 1):
            await session.send_unit(noise[number % len(noise)])
            async for output in outputs:
                spoken += isinstance(output, Audio)
                if isinstance(output, Finalized):
                    dropped += output.dropped_units
                    break
            if number in (WARM_UP, WARM_UP + UNITS):
                found.append(living())
        (before, bytes_before), (after, bytes_after) = found
        if bytes_after > 1.02 * bytes_before:  # the engine's thread was in the middle of a tick
            await until(lambda: living()[1] <= 1.02 * bytes_before)

    assert dropped > UNITS // 2, "the window has not slid"
    assert spoken > UNITS // 2
    grown = {name: after[name] - count for name, count in before.items() if after[name] > count + SLACK}
    grown |= {name: count for name, count in after.items() if name not in before and count > SLACK}
    # The status page keeps the newest ticks and slacks; the engine keeps some until they are told. A storage
    # is made of each tensor that is looked at.
    for name in ("Ticked", "UntypedStorage"):
        grown.pop(name, None)
    assert grown == {}, MOST_TICKS
