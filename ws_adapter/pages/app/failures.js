/**
 * Failures, as texts with advice. A failure has a name, of its texts `fail_NAME` and `fail_NAME_next`, and the values
 * for their placeholders.
 *
 * @import {Key} from "./texts.js"
 */

import { t } from "./texts.js";
import { element, make } from "./view.js";

/** @typedef {{name: string, message?: string, traceId?: string}} Failure */

/** Failure names by the browser's error for a device. @type {Record<string, string>} */
const DEVICES = {
  NotAllowedError: "denied",
  SecurityError: "insecure",
  NotFoundError: "no_device",
  OverconstrainedError: "no_device",
  NotReadableError: "busy_device",
  AbortError: "busy_device",
};

/** Failure names by error code or end reason of the server. @type {Record<string, string>} */
const SERVER = {
  queue_full: "full",
  service_unavailable: "unavailable",
  worker_busy: "unavailable",
  worker_connect_failed: "unavailable",
  queue_timeout: "unavailable",
  init_timeout: "unavailable",
  unauthorized: "key",
  rate_limited: "rate",
  quota_exceeded: "quota",
  unsupported_mode: "mode",
  unsupported_protocol: "mode",
  queue_cancelled: "cancelled",
  timeout: "timeout",
  context_full: "context",
  server_shutdown: "shutdown",
  backend_error: "backend",
  inference_error: "backend",
  error: "backend",
  slow_consumer: "slow",
};

/** Failure names by HTTP status. @type {Record<number, string>} */
const STATUS = { 401: "key", 403: "origin", 429: "rate", 503: "unavailable" };

/** @param {unknown} error of a device @returns {Failure} */
export function ofDevice(error) {
  if (error instanceof DOMException && error.name in DEVICES) return { name: DEVICES[error.name] };
  return { name: "file", message: String(error) };
}

/** @param {string} code @param {string} [message] @param {string} [traceId] @returns {Failure} */
export function ofServer(code, message, traceId) {
  return { name: SERVER[code] ?? "refused", message, traceId };
}

/** Finds out by an HTTP request why a WebSocket did not open, which browsers do not report. @param {string} key */
export async function whyClosed(key) {
  try {
    const headers = key ? { Authorization: `Bearer ${key}` } : undefined;
    const { ok, status } = await fetch("/v1/models", { headers });
    return { name: ok ? "lost" : (STATUS[status] ?? "unavailable") };
  } catch {
    return { name: "unreachable" };
  }
}

/** Whether the browser allows this page a microphone and worklets. */
export function isSecure() {
  return window.isSecureContext && Boolean(navigator.mediaDevices?.getUserMedia);
}

/**
 * Shows a failure until the user closes it or another one replaces it.
 *
 * @param {Failure} failure @param {{retry?: () => void, tlsPort?: number | null}} [ways]
 */
export function show(failure, { retry, tlsPort } = {}) {
  const box = element("failure");
  const values = { message: failure.message ?? "" };
  const text = (/** @type {string} */ key) => t(/** @type {Key} */ (key), values);
  const next = make("p", "", text(`fail_${failure.name}_next`));
  const ways = make("div", "controls");
  if (failure.name === "insecure") {
    next.append(" ", tlsPort ? tlsLink(tlsPort) : t("fail_insecure_guide"));
  } else if (retry) {
    ways.append(action(t("retry"), "primary", () => (hide(), retry())));
  }
  ways.append(action(t("dismiss"), "quiet", hide));
  box.dataset.failure = failure.name;
  box.replaceChildren(make("b", "", text(`fail_${failure.name}`)), next);
  if (failure.traceId) box.append(make("small", "", t("trace_of", { id: failure.traceId })));
  box.append(ways);
  box.hidden = false;
  box.scrollIntoView({ block: "nearest" });
}

export function hide() {
  const box = element("failure");
  box.hidden = true;
  delete box.dataset.failure;
}

/** @param {number} port */
function tlsLink(port) {
  const link = make("a", "", t("fail_insecure_tls"));
  link.href = `https://${location.hostname}:${port}/`;
  return link;
}

/** @param {string} text @param {string} kind @param {() => void} act */
function action(text, kind, act) {
  const node = make("button", kind, text);
  node.type = "button";
  node.onclick = act;
  return node;
}
