/**
 * Client of Antiphon's public protocols for web pages.
 *
 * @typedef {import("./chat.js").ChatEvent} ChatEvent
 * @typedef {import("./duplex.js").ConversationEvent} ConversationEvent
 * @typedef {import("./transcription.js").TranscriptionEvent} TranscriptionEvent
 */

export { ask } from "./chat.js";
export { DIALECTS } from "./dialects.js";
export { DuplexSession } from "./duplex.js";
export { endpoint, newTrace, subprotocols } from "./endpoint.js";
export * from "./samples.js";
export { TranscriptionSession } from "./transcription.js";
