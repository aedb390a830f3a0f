/**
 * Streaming transcription at `/v1/transcription`.
 *
 * @import {Transcription} from "./events.js"
 * @import {Watch} from "./socket.js"
 */

import { endpoint } from "./endpoint.js";
import { encodePcm16 } from "./samples.js";
import { JsonSocket } from "./socket.js";

/**
 * @typedef {{kind: "created"}} Created
 * @typedef {{kind: "text", text: string}} Text
 * @typedef {{kind: "done", text: string}} Done an utterance is over
 * @typedef {{kind: "error", code: string, message: string}} Failed
 * @typedef {{kind: "lost", code: number, opened: boolean}} Lost
 * @typedef {Created | Text | Done | Failed | Lost} TranscriptionEvent
 */

export class TranscriptionSession {
  /**
   * @param {{base: string | URL, key?: string, model: string} & Watch} options
   * @param {(event: TranscriptionEvent) => void} on
   */
  constructor({ base, key, model, onRaw }, on) {
    this.socket = new JsonSocket(endpoint(base, "/v1/transcription"), key, { onRaw }, {
      open: () => {
        this.socket.send({ type: "session.update", model });
        this.socket.send({ type: "input_audio_buffer.commit" });
      },
      close: (code, opened) => on({ kind: "lost", code, opened }),
      event: (/** @type {Transcription.ServerEvent} */ e) => {
        switch (e.type) {
          case "session.created":
            on({ kind: "created" });
            break;
          case "transcription.delta":
            on({ kind: "text", text: e.delta });
            break;
          case "transcription.done":
            on({ kind: "done", text: e.text });
            break;
          case "error":
            on({ kind: "error", code: e.code, message: e.error });
        }
      },
    });
  }

  /** @param {Float32Array} samples 16 kHz */
  append(samples) {
    this.socket.send({ type: "input_audio_buffer.append", audio: encodePcm16(samples) });
  }

  /** Ends the utterance: its text follows. */
  finish() {
    this.socket.send({ type: "input_audio_buffer.commit", final: true });
  }

  /** Closes the session without further events. */
  close() {
    this.socket.drop();
  }
}
