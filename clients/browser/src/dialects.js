/**
 * The three dialects of a full-duplex conversation: messages to send, and server events as one common type.
 *
 * @import {Realtime, Earlier, Duplex} from "./events.js"
 */

import { decodeFloat32, encodeFloat32 } from "./samples.js";

/**
 * @typedef {Object} Settings
 * @property {string} [instructions] the system prompt
 * @property {Realtime.ConfigFields} [config] values that differ from the model's defaults
 * @property {{audio?: string, name?: string}} [voice] a reference in base64 (WAV), or the name of a voice
 *
 * @typedef {Object} Figures of a unit; unknown ones are absent
 * @property {number} [context] tokens held
 * @property {number} [contextMax] the most that can be held
 * @property {number} [unitMs] from the complete unit to its answer
 * @property {number} [droppedTotal]
 *
 * @typedef {{kind: "queued", position: number, waitS: number, isGuess: boolean, length: number}} Queued
 * @typedef {{kind: "slot"}} Slot
 * @typedef {{kind: "created", sessionId: string, promptTokens: number, unsupported: string[]}} Created
 * @typedef {{kind: "listen", inputId?: string, interrupted: boolean, dropped: boolean, figures: Figures}} Listen
 *   a unit in which the model listens; `interrupted`: its answer was interrupted (barge-in)
 * @typedef {{kind: "text", inputId?: string, text: string, figures: Figures}} Text
 * @typedef {{kind: "audio", inputId?: string, samples: Float32Array<ArrayBuffer>, figures: Figures}} Audio 24 kHz
 * @typedef {{kind: "turn_end"}} TurnEnd the model has finished its turn
 * @typedef {{kind: "paused" | "resumed"}} Break
 * @typedef {{kind: "error", code: string, message: string, traceId?: string}} Failed
 * @typedef {{kind: "closed", reason: string, message?: string, traceId?: string}} Closed
 * @typedef {Queued | Slot | Created | Listen | Text | Audio | TurnEnd | Break | Failed | Closed} DuplexEvent
 *
 * @typedef {Object} Append
 * @property {Float32Array} samples 16 kHz
 * @property {string[]} frames base64 of JPEG
 * @property {string} inputId
 *
 * @typedef {Object} Dialect
 * @property {(mode: "audio" | "video") => string} path
 * @property {(settings: Settings, trace: object) => object} open
 * @property {(append: Append) => object} append
 * @property {object} forceListen
 * @property {((s: number) => object) | null} pause null if the dialect has no event for a pause
 * @property {object | null} resume
 * @property {object} close
 * @property {boolean} namesInput whether answers carry the id of their append
 * @property {(event: any, turn: Turn) => DuplexEvent[]} read
 */

/** Whether a response is open. A listen event while one is open is an interruption. */
export class Turn {
  isOpen = false;

  /** @returns {boolean} whether one was open */
  end() {
    const was = this.isOpen;
    this.isOpen = false;
    return was;
  }
}

/** @param {Realtime.Metrics | undefined} m @returns {Figures} */
function figures(m) {
  return {
    context: m?.kv_cache_length,
    contextMax: m?.n_past_max,
    unitMs: m?.wall_clock_ms,
    droppedTotal: m?.dropped_total,
  };
}


/** @param {Settings} s */
function voice(s) {
  if (!s.voice) return {};
  const { audio, name } = s.voice;
  return audio ? { ref_audio_base64: audio } : name ? { ref_audio_path: name } : {};
}

/** @param {any} e a queue event of any dialect @returns {DuplexEvent[]} */
function waiting(e) {
  return [
    {
      kind: "queued",
      position: e.position,
      waitS: e.estimated_wait_s,
      isGuess: e.estimate_is_guess,
      length: e.queue_length,
    },
  ];
}

/** @param {any} e an error of `/v1/realtime` @returns {DuplexEvent[]} */
function failed(e) {
  const { code, message, trace_id: traceId } = e.error;
  return [{ kind: "error", code, message, traceId }];
}

/** @type {Dialect} */
const realtime = {
  path: (mode) => `/v1/realtime?mode=${mode}`,
  open: (s, trace) => ({
    type: "session.init",
    payload: { system_prompt: s.instructions, config: s.config, voice: voice(s) },
    trace_context: trace,
  }),
  append: ({ samples, frames, inputId }) => ({
    type: "input.append",
    input: {
      audio: encodeFloat32(samples),
      ...(frames.length ? { video_frames: frames } : {}),
      input_id: inputId,
    },
  }),
  forceListen: { type: "input.append", input: { force_listen: true } },
  pause: null,
  resume: null,
  close: { type: "session.close", reason: "user_stop" },
  namesInput: true,
  read(/** @type {Realtime.ServerEvent} */ e, turn) {
    switch (e.type) {
      case "session.queued":
      case "session.queue_update":
        return waiting(e);
      case "session.queue_done":
        return [{ kind: "slot" }];
      case "session.created":
        return [
          {
            kind: "created",
            sessionId: e.session_id,
            promptTokens: e.metrics.prompt_length ?? 0,
            unsupported: e.unsupported_fields ?? [],
          },
        ];
      case "response.output.delta": {
        const common = { inputId: e.input_id, figures: figures(e.metrics) };
        if (e.kind === "listen") {
          if (e.reason) {
            turn.end();
            return [{ kind: "turn_end" }];
          }
          const interrupted = turn.end();
          return [{ kind: "listen", ...common, interrupted, dropped: e.metrics.dropped ?? false }];
        }
        turn.isOpen = true;
        if (e.kind === "text") return [{ kind: "text", ...common, text: e.text }];
        return [{ kind: "audio", ...common, samples: decodeFloat32(e.audio) }];
      }
      case "session.closed":
        return [
          { kind: "closed", reason: e.reason, message: e.diagnostic?.message, traceId: e.diagnostic?.trace_id },
        ];
      case "error":
        return failed(e);
    }
    return [];
  },
};

/** @type {Dialect} */
const earlier = {
  ...realtime,
  open: (s, trace) => ({
    type: "session.update",
    session: { instructions: s.instructions ?? "", voice_config: s.config, ...voice(s) },
    trace_context: trace,
  }),
  append: ({ samples, frames, inputId }) => ({
    type: "input_audio_buffer.append",
    audio: encodeFloat32(samples),
    ...(frames.length ? { video_frames: frames } : {}),
    input_id: inputId,
  }),
  forceListen: { type: "input_audio_buffer.append", force_listen: true },
  read(/** @type {Earlier.ServerEvent} */ e, turn) {
    switch (e.type) {
      case "session.queued":
      case "session.queue_update":
        return waiting(e);
      case "session.queue_done":
        return [{ kind: "slot" }];
      case "session.created":
        return [
          {
            kind: "created",
            sessionId: e.session_id,
            promptTokens: e.prompt_length,
            unsupported: e.unsupported_fields ?? [],
          },
        ];
      case "response.listen": {
        const common = { inputId: e.input_id, figures: { ...figures(e.metrics), context: e.kv_cache_length } };
        return [{ kind: "listen", ...common, interrupted: turn.end(), dropped: e.metrics.dropped ?? false }];
      }
      case "response.output_audio.delta": {
        const common = { inputId: e.input_id, figures: { ...figures(e.metrics), context: e.kv_cache_length } };
        return spoken(common, e.text, e.audio, e.end_of_turn, turn);
      }
      case "session.closed":
        return [{ kind: "closed", reason: e.reason }];
      case "error":
        return failed(e);
    }
    return [];
  },
};

/** @type {Dialect} */
const duplex = {
  path: (mode) => `/ws/duplex/${mode === "audio" ? "adx" : "omni"}_page`,
  open: (s) => ({ type: "prepare", system_prompt: s.instructions, config: s.config, ...voice(s) }),
  append: ({ samples, frames }) => ({
    type: "audio_chunk",
    audio_base64: encodeFloat32(samples),
    ...(frames.length ? { frame_base64_list: frames } : {}),
  }),
  forceListen: { type: "audio_chunk", force_listen: true },
  pause: (timeout) => ({ type: "pause", timeout }),
  resume: { type: "resume" },
  close: { type: "stop" },
  namesInput: false,
  read(/** @type {Duplex.ServerEvent} */ e, turn) {
    switch (e.type) {
      case "queued":
      case "queue_update":
        return waiting(e);
      case "queue_done":
        return [{ kind: "slot" }];
      case "prepared":
        return [
          {
            kind: "created",
            sessionId: e.session_id,
            promptTokens: e.prompt_length,
            unsupported: e.unsupported_fields ?? [],
          },
        ];
      case "result": {
        const common = {
          figures: { context: e.kv_cache_length, unitMs: e.wall_clock_ms, droppedTotal: e.dropped_total },
        };
        if (e.is_listen) {
          return [{ kind: "listen", ...common, interrupted: turn.end(), dropped: e.dropped ?? false }];
        }
        return spoken(common, e.text, e.audio_data ?? "", e.end_of_turn, turn);
      }
      case "paused":
      case "resumed":
        return [{ kind: e.type }];
      case "stopped":
      case "timeout":
        return [{ kind: "closed", reason: e.type === "timeout" ? "timeout" : e.reason, message: e.reason }];
      case "error":
        return [{ kind: "error", code: e.code, message: e.error, traceId: e.trace_id }];
    }
    return [];
  },
};

/**
 * Returns the events of a speaking unit whose text, audio and end of turn come in one event.
 *
 * @param {{inputId?: string, figures: Figures}} common @param {string} text @param {string} audio
 * @param {boolean} isEnd @param {Turn} turn @returns {DuplexEvent[]}
 */
function spoken(common, text, audio, isEnd, turn) {
  turn.isOpen = !isEnd;
  /** @type {DuplexEvent[]} */
  const events = text ? [{ kind: "text", ...common, text }] : [];
  if (audio) events.push({ kind: "audio", ...common, samples: decodeFloat32(audio) });
  if (isEnd) events.push({ kind: "turn_end" });
  return events;
}

/** @type {Record<"realtime" | "earlier" | "duplex", Dialect>} */
export const DIALECTS = { realtime, earlier, duplex };
