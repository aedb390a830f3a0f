/**
 * One question and its answer at `/ws/chat`. The caller stores the history.
 *
 * @import {Chat} from "./events.js"
 * @import {Watch} from "./socket.js"
 */

import { endpoint } from "./endpoint.js";
import { decodeFloat32 } from "./samples.js";
import { JsonSocket } from "./socket.js";

/**
 * @typedef {{kind: "queued", position: number, waitS: number, isGuess: boolean, length: number}} Queued
 * @typedef {{kind: "slot"}} Slot
 * @typedef {{kind: "text", text: string}} Text
 * @typedef {{kind: "audio", samples: Float32Array<ArrayBuffer>}} Audio 24 kHz
 * @typedef {{kind: "done", text: string, inputTokens: number, outputTokens: number, unsupported: string[]}} Done
 * @typedef {{kind: "error", code: string, message: string, traceId?: string}} Failed
 * @typedef {{kind: "lost", code: number, opened: boolean}} Lost
 * @typedef {Queued | Slot | Text | Audio | Done | Failed | Lost} ChatEvent
 */

/**
 * @param {{base: string | URL, key?: string, request: Chat.ChatRequest} & Watch} options
 * @param {(event: ChatEvent) => void} on
 * @returns {() => void} stops the answer
 */
export function ask({ base, key, request, onRaw }, on) {
  const socket = new JsonSocket(endpoint(base, "/ws/chat"), key, { onRaw }, {
    open: () => socket.send(request),
    close: (code, opened) => on({ kind: "lost", code, opened }),
    event: (/** @type {Chat.ServerEvent} */ e) => {
      switch (e.type) {
        case "queued":
        case "queue_update":
          on({
            kind: "queued",
            position: e.position,
            waitS: e.estimated_wait_s,
            isGuess: e.estimate_is_guess,
            length: e.queue_length,
          });
          break;
        case "queue_done":
          on({ kind: "slot" });
          break;
        case "chunk":
          if (e.text_delta) on({ kind: "text", text: e.text_delta });
          if (e.audio_data) on({ kind: "audio", samples: decodeFloat32(e.audio_data) });
          break;
        case "done":
          socket.drop();
          on({
            kind: "done",
            text: e.text,
            inputTokens: e.input_tokens,
            outputTokens: e.generated_tokens,
            unsupported: e.unsupported_fields ?? [],
          });
          break;
        case "error":
          socket.drop();
          on({ kind: "error", code: e.code, message: e.error, traceId: e.trace_id });
      }
    },
  });
  return () => socket.drop();
}
