/**
 * One full-duplex conversation with its devices, socket and sound. It uses no elements of the page; a `View` shows it.
 *
 * @import {ConversationEvent} from "./client/duplex.js"
 * @import {Figures, Settings} from "./client/dialects.js"
 * @import {Failure} from "./failures.js"
 * @import {Played} from "./sound.js"
 */

import { DuplexSession, encodeBytes } from "./client/antiphon.js";
import { isSecure, ofDevice, ofServer, whyClosed } from "./failures.js";
import { Sound } from "./sound.js";

/**
 * @typedef {"idle" | "connecting" | "queued" | "connected" | "listening" | "speaking" | "paused" | "reconnecting" | "closed"}
 *   State
 * @typedef {{samples: Float32Array<ArrayBuffer>, text?: string, name?: string}} Recording of 16 kHz
 *
 * @typedef {Object} Plan
 * @property {string} key
 * @property {"realtime" | "earlier" | "duplex"} dialect
 * @property {Settings} settings
 * @property {string} [deviceId]
 * @property {Recording} [recording] instead of the microphone
 * @property {import("./camera.js").Camera} [camera]
 * @property {number} startBufferS
 *
 * @typedef {Object} View
 * @property {(state: State) => void} state
 * @property {(place: {position: number, length: number, waitS: number, isGuess: boolean}) => void} queued
 * @property {() => void} begun the session takes input
 * @property {(fields: string[]) => void} unsupported
 * @property {(recording: Recording) => void} asked a recording begins to play
 * @property {(level: number) => void} level of the input, every 50 ms
 * @property {(played: Played) => void} played
 * @property {(picture: Blob) => void} saw
 * @property {(text: string) => void} text
 * @property {(interrupted: boolean) => void} turnOver
 * @property {(figures: Figures & {roundTripMs?: number, skipped: number}) => void} figures
 * @property {(failure: Failure) => void} failed the conversation ended with this failure
 * @property {(message: string) => void} trouble an error after which the conversation continues
 * @property {(direction: "up" | "down", event: any) => void} raw
 */

const PAUSE_S = 60;

/** End reasons that are no failure. */
const WANTED = new Set(["user_stop", "stopped", "client_closed"]);

/** Errors after which a session continues. */
const PASSING = new Set(["inference_error", "invalid_payload", "missing_field", "paused", "not_ready"]);

export class Conversation {
  /** @param {View} view */
  constructor(view) {
    this.view = view;
    /** @type {State} */
    this.state = "idle";
    /** @type {DuplexSession | null} */
    this.session = null;
    /** @type {Sound | null} */
    this.sound = null;
    /** @type {Plan | null} */
    this.plan = null;
    /** @type {Failure | null} */
    this.fault = null;
    this.isMuted = false;
    this.isTurnOpen = false;
    this.wasPaused = false;
    /** Keeps the order of units while pictures are taken. */
    this.sending = Promise.resolve();
  }

  get isRunning() {
    return this.state !== "idle" && this.state !== "closed";
  }

  get traceId() {
    return this.session?.traceId;
  }

  /** @param {State} state */
  enter(state) {
    if (this.state === state) return;
    this.state = state;
    this.view.state(state);
  }

  /** Starts the conversation. Call it from a click. @param {Plan} plan */
  async start(plan) {
    if (this.isRunning) return;
    this.plan = plan;
    this.fault = null;
    this.isMuted = false;
    this.isTurnOpen = false;
    this.enter("connecting");
    // Late callbacks from the devices and the socket of an earlier conversation are ignored.
    /** @type {Sound} */
    const sound = new Sound({
      unit: (samples) => this.sound === sound && this.send(samples),
      level: (level) => this.sound === sound && this.view.level(level),
      played: (played) => this.sound === sound && this.played(played),
      lost: () => this.sound === sound && this.end({ name: "device_lost" }),
    });
    this.sound = sound;
    if (!isSecure()) {
      this.end({ name: "insecure" });
      return;
    }
    try {
      await sound.open();
    } catch {
      // The worklets are loaded from the server, so it may be the cause.
      const failure = await whyClosed(plan.key);
      if (this.sound === sound) this.end(failure);
      return;
    }
    sound.setStartBuffer(plan.startBufferS);
    try {
      if (!plan.recording) await sound.useMicrophone(plan.deviceId);
      await plan.camera?.open();
    } catch (error) {
      if (this.sound === sound) this.end(ofDevice(error));
      return;
    }
    if (this.sound !== sound) {
      plan.camera?.close();
      return;
    }
    const { key, dialect, settings, camera } = plan;
    /** @type {import("./client/duplex.js").Options & import("./client/socket.js").Watch} */
    const options = {
      base: location.origin,
      mode: camera ? "video" : "audio",
      dialect,
      key,
      settings,
      reconnect: true,
      onRaw: this.view.raw,
    };
    const session = new DuplexSession(options, (event) => this.session === session && this.handle(event));
    this.session = session;
  }

  /** @param {ConversationEvent} event */
  handle(event) {
    switch (event.kind) {
      case "queued":
        this.enter("queued");
        this.view.queued(event);
        break;
      case "slot":
        this.enter("connected");
        break;
      case "created":
        this.begin(event.unsupported);
        break;
      case "listen":
        if (event.interrupted) this.interrupted();
        break;
      case "text":
        this.isTurnOpen = true;
        this.view.text(event.text);
        break;
      case "audio":
        this.isTurnOpen = true;
        this.sound?.say(event.samples);
        break;
      case "turn_end":
        this.sound?.endTurn();
        this.turnOver(false);
        break;
      case "error":
        this.failed(ofServer(event.code, event.message, event.traceId), event.code);
        break;
      case "closed":
        this.end(WANTED.has(event.reason) ? null : ofServer(event.reason, event.message, event.traceId));
        break;
      case "connection_lost":
        this.wasPaused = this.state === "paused";
        this.enter("reconnecting");
        break;
      case "connection_resumed":
        this.enter(this.wasPaused ? "paused" : "listening");
        break;
      case "lost":
        void this.lost(event.opened, event.code);
    }
    if ("figures" in event) {
      const skipped = this.session?.skipped ?? 0;
      this.view.figures({ ...event.figures, roundTripMs: event.roundTripMs, skipped });
    }
  }

  /** @param {string[]} unsupported */
  begin(unsupported) {
    this.enter("listening");
    this.view.begun();
    if (unsupported.length) this.view.unsupported(unsupported);
    if (this.plan?.recording) this.ask(this.plan.recording);
    this.sound?.run(true);
  }

  /** Plays a recording into the conversation. @param {Recording} recording */
  ask(recording) {
    this.sound?.play(recording.samples);
    this.view.asked(recording);
  }

  /** @param {Float32Array} samples one unit */
  send(samples) {
    const { session, plan } = this;
    this.sending = this.sending.then(async () => {
      const picture = (await plan?.camera?.picture()) ?? null;
      if (this.session !== session || this.state === "paused") return;
      const frames = picture ? [encodeBytes(new Uint8Array(await picture.arrayBuffer()))] : [];
      if (picture) this.view.saw(picture);
      session?.append(samples, frames);
    });
  }

  /** @param {Played} played */
  played(played) {
    if (this.state === "listening" && played.isPlaying) this.enter("speaking");
    // A gap within an answer is an underrun; the model is still speaking.
    else if (this.state === "speaking" && !played.isPlaying && played.hasEnded) this.enter("listening");
    this.view.played(played);
  }

  interrupted() {
    this.sound?.flush();
    this.turnOver(true);
  }

  /** @param {boolean} interrupted */
  turnOver(interrupted) {
    if (!this.isTurnOpen) return;
    this.isTurnOpen = false;
    this.view.turnOver(interrupted);
  }

  forceListen() {
    this.session?.forceListen();
    this.sound?.flush();
  }

  /** @param {boolean} muted */
  mute(muted) {
    this.isMuted = muted;
    this.sound?.mute(muted);
    this.view.state(this.state);
  }

  /** Pauses: sends nothing until `resume`, and plays the buffered answer to its end. */
  pause() {
    this.sound?.run(false);
    this.session?.pause(PAUSE_S);
    this.enter("paused");
  }

  resume() {
    this.session?.resume();
    this.sound?.run(true);
    this.enter("listening");
  }

  /** Stops for the user: closes the devices without waiting for the server. */
  stop() {
    this.session?.close();
    this.end(null);
  }

  /** @param {Failure} failure @param {string} code */
  failed(failure, code) {
    const isBegun = this.state === "listening" || this.state === "speaking" || this.state === "paused";
    if (isBegun && PASSING.has(code)) {
      this.view.trouble(failure.message ?? code);
      return;
    }
    // The server closes the session after most of these errors, with a less specific reason.
    this.fault = failure;
    if (!isBegun && PASSING.has(code)) this.end(failure);
  }

  /** @param {boolean} opened @param {number} code */
  async lost(opened, code) {
    const { fault, plan } = this;
    const found = fault ?? (opened ? { name: code === 1012 ? "shutdown" : "lost" } : null);
    if (found) {
      this.end(found);
      return;
    }
    // Close the microphone before asking for the reason.
    this.release();
    this.end(await whyClosed(plan?.key ?? ""));
  }

  /** @param {Failure | null} failure */
  end(failure) {
    if (!this.isRunning) return;
    const found = failure && this.fault ? this.fault : failure;
    this.turnOver(true);
    this.release();
    if (found) this.view.failed(found);
    this.enter("closed");
  }

  /** Closes all devices and the socket. */
  release() {
    void this.sound?.close();
    this.plan?.camera?.close();
    this.sound = null;
    const { session } = this;
    this.session = null;
    if (session && !session.isOver) session.close();
  }
}
