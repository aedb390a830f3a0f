/** URLs of a server's services, and the subprotocols that carry a key. */

/** Returns a WebSocket URL. @param {string | URL} base root of the server, `http:` or `ws:` @param {string} path with query */
export function endpoint(base, path) {
  const url = new URL(path, base);
  url.protocol = url.protocol === "https:" || url.protocol === "wss:" ? "wss:" : "ws:";
  return url;
}

/** Returns the subprotocols with the key, since a browser cannot set headers on a WebSocket. @param {string} [key] */
export function subprotocols(key) {
  return key ? ["realtime", `openai-insecure-api-key.${key}`] : [];
}

/** Makes a W3C trace context, by which the page's requests can be found in the server's traces. */
export function newTrace() {
  const hex = (/** @type {number} */ n) =>
    Array.from(crypto.getRandomValues(new Uint8Array(n)), (b) => b.toString(16).padStart(2, "0")).join("");
  const traceId = hex(16);
  return { traceId, context: { traceparent: `00-${traceId}-${hex(8)}-01` } };
}
