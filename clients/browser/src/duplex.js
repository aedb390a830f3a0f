/**
 * A full-duplex conversation in units of one second, in which both sides may speak at any time.
 *
 * @import {Append, DuplexEvent, Settings} from "./dialects.js"
 * @import {Watch} from "./socket.js"
 */

import { DIALECTS, Turn } from "./dialects.js";
import { endpoint, newTrace } from "./endpoint.js";
import { JsonSocket } from "./socket.js";

/** The most bytes that may wait for a slow network; further units are skipped, since the microphone cannot wait. */
const MOST_BACKLOG = 1_000_000;

/** The largest number of unanswered units whose round trip is measured. */
const MOST_ASKED = 64;

/** The number of last messages that are stored, to send them again after a lost connection. */
const MOST_KEPT = 8;

/** The wait before the second attempt to reconnect; each further wait is twice as long. */
const BACKOFF_MS = 250;
const BUSY_BACKOFF_MS = 2000;
const MOST_BACKOFF_MS = 5000;

/** Close codes of a lost connection: without a Close frame, or with that of a gateway. */
const LOST = new Set([1006, 1012, 1013, 1014]);
const BUSY = new Set([1012, 1013]);

/** Error codes with which a session can still be resumed. */
const TRY_AGAIN = new Set(["rate_limited", "service_unavailable"]);

/** The timeout for the server's answer to a close. */
const CLOSE_TIMEOUT_MS = 2000;

/**
 * @typedef {{kind: "lost", code: number, opened: boolean}} Lost the socket closed without a closing event
 * @typedef {{kind: "connection_lost", windowS: number} | {kind: "connection_resumed"}} Connection with `reconnect`: the
 *   connection is lost and being reopened, or the conversation continues over another one
 * @typedef {(DuplexEvent & {roundTripMs?: number}) | Lost | Connection} ConversationEvent
 *
 * @typedef {Object} Options
 * @property {string | URL} base root of the server
 * @property {"audio" | "video"} [mode]
 * @property {keyof typeof DIALECTS} [dialect]
 * @property {string} [key]
 * @property {Settings} [settings]
 * @property {boolean} [reconnect] reopen a lost connection within the server's resume window
 */

export class DuplexSession {
  /** @param {Options & Watch} options @param {(event: ConversationEvent) => void} on */
  constructor(options, on) {
    const trace = newTrace();
    /** Units that were skipped because the network was too slow. */
    this.skipped = 0;
    this.dialect = DIALECTS[options.dialect ?? "realtime"];
    const opening = this.dialect.open(options.settings ?? {}, trace.context);
    /** Trace id of the client, to which the server's session links; undefined in a dialect without trace contexts. */
    this.traceId = "trace_context" in opening ? trace.traceId : undefined;
    this.on = on;
    this.turn = new Turn();
    /** @type {Map<string, number>} */
    this.asked = new Map();
    this.count = 0;
    this.isOver = false;
    /** Counts of received and of sent messages. */
    this.received = this.sent = 0;
    /** @type {{number: number, event: object}[]} */
    this.kept = [];
    /** The server's latest offer to resume the session. @type {{token: string, window_s: number} | null} */
    this.offer = null;
    this.isClosing = false;
    /** When the connection was lost (0 while it is open), and the number of attempts to reopen it. */
    this.lostAt = this.attempts = 0;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    this.options = options;
    this.url = endpoint(options.base, this.dialect.path(options.mode ?? "audio"));
    this.socket = this.connect(this.url, () => this.say(opening));
  }

  /** @param {URL} url @param {() => void} [open] */
  connect(url, open) {
    /** @type {JsonSocket} */
    const socket = new JsonSocket(url, this.options.key, this.options, {
      open,
      event: (event) => this.read(event),
      close: (code, opened) => this.closed(code, opened),
    });
    return socket;
  }

  /** Sends an event, and stores it, to send it again if the connection is lost. @param {object} event */
  say(event) {
    this.sent += 1;
    this.kept.push({ number: this.sent, event });
    if (this.kept.length > MOST_KEPT) this.kept.shift();
    this.socket.send(event);
  }

  /**
   * Sends a unit, or skips and counts it if too many bytes wait for the network.
   *
   * @param {Float32Array} samples 16,000 of them, at 16 kHz @param {string[]} [frames] base64 of JPEG, at most 4
   */
  append(samples, frames = []) {
    if (this.lostAt || this.socket.backlog > MOST_BACKLOG) {
      this.skipped += 1;
      return;
    }
    const inputId = `in-${this.count++}`;
    if (this.asked.size === MOST_ASKED) this.asked.delete([...this.asked.keys()][0]);
    this.asked.set(inputId, performance.now());
    this.say(this.dialect.append({ samples, frames, inputId }));
  }

  /** Interrupts the answer of the model. */
  forceListen() {
    if (!this.lostAt) this.say(this.dialect.forceListen);
  }

  /** Announces a pause if the dialect has an event for it; the caller stops sending units. @param {number} s */
  pause(s) {
    if (this.dialect.pause) this.say(this.dialect.pause(s));
  }

  resume() {
    if (this.dialect.resume) this.say(this.dialect.resume);
  }

  /** Closes the session; `closed` follows, or `lost` if the server does not answer in time. */
  close() {
    this.isClosing = true;
    this.say(this.dialect.close);
    setTimeout(() => this.end({ kind: "lost", code: 1006, opened: true }), CLOSE_TIMEOUT_MS);
  }

  /** @param {any} event */
  read(event) {
    if (this.lostAt) {
      if (event.type === "session.resumed") this.goOn(event);
      // A session that was resumed too often, or whose adapter cannot be reached, can be resumed later. The close
      // code shows this too.
      else if (!TRY_AGAIN.has(event.error?.code ?? event.code)) this.offer = null;
      return;
    }
    this.received += 1;
    this.offer = event.resume ?? this.offer;
    for (const told of this.dialect.read(event, this.turn)) {
      if (told.kind === "closed") this.end(told);
      else if (!this.isOver) this.on({ ...told, roundTripMs: this.roundTrip(told) });
    }
  }

  /** @param {number} code @param {boolean} opened */
  closed(code, opened) {
    if (!this.options.reconnect || !this.offer || this.isClosing || (!this.lostAt && !LOST.has(code))) {
      this.end({ kind: "lost", code: this.lostAt ? 1006 : code, opened: opened || this.lostAt > 0 });
      return;
    }
    const now = performance.now();
    if (!this.lostAt) {
      this.lostAt = now;
      this.attempts = 0;
      this.on({ kind: "connection_lost", windowS: this.offer.window_s });
      if (this.isOver) return;
    }
    const first = BUSY.has(code) ? BUSY_BACKOFF_MS : BACKOFF_MS;
    const backoff = this.attempts ? first * 2 ** (this.attempts - 1) : BUSY.has(code) ? first : 0;
    const wait = Math.min(MOST_BACKOFF_MS, backoff) * (0.5 + Math.random() / 2) + Math.random() * BACKOFF_MS;
    if (now + wait > this.lostAt + this.offer.window_s * 1000) {
      this.end({ kind: "lost", code: 1006, opened: true });
      return;
    }
    this.attempts += 1;
    this.timer = setTimeout(() => this.reopen(), wait);
  }

  reopen() {
    if (this.isOver || !this.offer) return;
    const url = new URL(this.url);
    url.searchParams.set("resume", this.offer.token);
    url.searchParams.set("last_event", String(this.received));
    this.socket = this.connect(url);
  }

  /** Continues the resumed session: sends the events again that the server did not receive. @param {any} resumed */
  goOn(resumed) {
    this.offer = resumed.resume;
    this.lostAt = 0;
    for (const { number, event } of this.kept) if (number > resumed.received) this.socket.send(event);
    this.on({ kind: "connection_resumed" });
  }

  /** Returns the milliseconds since the input of an answer was sent; undefined for all but its first answer. */
  roundTrip(/** @type {DuplexEvent} */ event) {
    if (!("figures" in event)) return undefined;
    // Without input ids a dialect sends one answer for each input, in order.
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
    clearTimeout(this.timer);
    this.socket.drop();
    this.on(event);
  }
}
