/**
 * A full-duplex conversation: both sides may speak at any time, one second-long unit after another.
 *
 * @import {Append, DuplexEvent, Settings} from "./dialects.js"
 * @import {Watch} from "./socket.js"
 */

import { DIALECTS, Turn } from "./dialects.js";
import { endpoint, newTrace } from "./endpoint.js";
import { JsonSocket } from "./socket.js";

/** Bytes that may wait for a slow network; the microphone does not wait, so what comes beyond is left out. */
const MOST_BACKLOG = 1_000_000;

/** Units without an answer that are remembered, to tell how long answers take. */
const MOST_ASKED = 64;

/** How long the server may take to say goodbye. */
const GOODBYE_MS = 2000;

/**
 * @typedef {{kind: "lost", code: number, opened: boolean}} Lost the socket ended without a goodbye
 * @typedef {(DuplexEvent & {roundTripMs?: number}) | Lost} ConversationEvent
 *
 * @typedef {Object} Options
 * @property {string | URL} base root of the server
 * @property {"audio" | "video"} [mode]
 * @property {keyof typeof DIALECTS} [dialect]
 * @property {string} [key]
 * @property {Settings} [settings]
 */

export class DuplexSession {
  /** @param {Options & Watch} options @param {(event: ConversationEvent) => void} on */
  constructor(options, on) {
    const trace = newTrace();
    /** Units that the network was too slow for. */
    this.skipped = 0;
    this.dialect = DIALECTS[options.dialect ?? "realtime"];
    const opening = this.dialect.open(options.settings ?? {}, trace.context);
    /** Of this side; the server's session links to it. None in a dialect that has no place for it. */
    this.traceId = "trace_context" in opening ? trace.traceId : undefined;
    this.on = on;
    this.turn = new Turn();
    /** @type {Map<string, number>} */
    this.asked = new Map();
    this.count = 0;
    this.isOver = false;
    const url = endpoint(options.base, this.dialect.path(options.mode ?? "audio"));
    this.socket = new JsonSocket(url, options.key, options, {
      open: () => this.socket.send(opening),
      event: (event) => this.read(event),
      close: (code, opened) => this.end({ kind: "lost", code, opened }),
    });
  }

  /**
   * Sends a unit. One that finds too much waiting for the network is left out, and counted.
   *
   * @param {Float32Array} samples 16,000 of them, at 16 kHz @param {string[]} [frames] base64 of JPEG, at most 4
   */
  append(samples, frames = []) {
    if (this.socket.backlog > MOST_BACKLOG) {
      this.skipped += 1;
      return;
    }
    const inputId = `in-${this.count++}`;
    if (this.asked.size === MOST_ASKED) this.asked.delete([...this.asked.keys()][0]);
    this.asked.set(inputId, performance.now());
    this.socket.send(this.dialect.append({ samples, frames, inputId }));
  }

  /** What the model is saying ends at once. */
  forceListen() {
    this.socket.send(this.dialect.forceListen);
  }

  /** To stop sending is a pause; where the dialect has a word for it the server is told. @param {number} s */
  pause(s) {
    if (this.dialect.pause) this.socket.send(this.dialect.pause(s));
  }

  resume() {
    if (this.dialect.resume) this.socket.send(this.dialect.resume);
  }

  /** Says goodbye; `closed` follows, or `lost` if the server does not answer in time. */
  close() {
    this.socket.send(this.dialect.close);
    setTimeout(() => this.end({ kind: "lost", code: 1006, opened: true }), GOODBYE_MS);
  }

  /** @param {any} event */
  read(event) {
    for (const told of this.dialect.read(event, this.turn)) {
      if (told.kind === "closed") this.end(told);
      else if (!this.isOver) this.on({ ...told, roundTripMs: this.roundTrip(told) });
    }
  }

  /** Milliseconds since the input was sent that an event answers; only its first answer counts. */
  roundTrip(/** @type {DuplexEvent} */ event) {
    if (!("figures" in event)) return undefined;
    // A dialect that does not name the input answers once for each, in order.
    const id = this.dialect.namesInput ? event.inputId : [...this.asked.keys()][0];
    const at = id === undefined ? undefined : this.asked.get(id);
    if (id === undefined || at === undefined) return undefined;
    this.asked.delete(id);
    return performance.now() - at;
  }

  /** @param {ConversationEvent} event */
  end(event) {
    if (this.isOver) return;
    this.isOver = true;
    this.socket.drop();
    this.on(event);
  }
}
