/** Where a server's services are, and how a browser shows its key there. */

/** @param {string | URL} base root of the server, `http:` or `ws:` @param {string} path with its query */
export function endpoint(base, path) {
  const url = new URL(path, base);
  url.protocol = url.protocol === "https:" || url.protocol === "wss:" ? "wss:" : "ws:";
  return url;
}

/** A browser sets no headers on a WebSocket: the key travels beside the subprotocol. @param {string} [key] */
export function subprotocols(key) {
  return key ? ["realtime", `openai-insecure-api-key.${key}`] : [];
}

/** A W3C trace context of our own, so that what a page did can be found in the server's traces. */
export function newTrace() {
  const hex = (/** @type {number} */ n) =>
    Array.from(crypto.getRandomValues(new Uint8Array(n)), (b) => b.toString(16).padStart(2, "0")).join("");
  const traceId = hex(16);
  return { traceId, context: { traceparent: `00-${traceId}-${hex(8)}-01` } };
}
