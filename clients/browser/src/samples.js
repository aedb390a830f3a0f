/** Samples in the form of the protocols: base64 of little-endian PCM. */

export const INPUT_RATE_HZ = 16_000;
export const OUTPUT_RATE_HZ = 24_000;

/** The most bytes in one call, since an argument list is limited. */
const PIECE = 0x8000;

/** @param {Float32Array} samples in [-1, 1] @returns {string} base64 of float32 */
export function encodeFloat32(samples) {
  return encodeBytes(new Uint8Array(samples.buffer, samples.byteOffset, samples.byteLength));
}

/** @param {Float32Array} samples in [-1, 1] @returns {string} base64 of int16 */
export function encodePcm16(samples) {
  const pcm = Int16Array.from(samples, (x) => Math.round(Math.max(-1, Math.min(1, x)) * 32767));
  return encodeBytes(new Uint8Array(pcm.buffer));
}

/** @param {Uint8Array} bytes @returns {string} */
export function encodeBytes(bytes) {
  let text = "";
  for (let i = 0; i < bytes.length; i += PIECE) text += String.fromCharCode(...bytes.subarray(i, i + PIECE));
  return btoa(text);
}

/** @param {string} text base64 of float32 @returns {Float32Array<ArrayBuffer>} */
export function decodeFloat32(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Float32Array(bytes.buffer, 0, bytes.length >> 2);
}
