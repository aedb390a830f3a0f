/** Files of the user, as the protocols take them. */

import { encodeBytes, encodeFloat32, INPUT_RATE_HZ } from "./client/antiphon.js";

/** What a server takes of a picture. */
const MOST_BYTES = 2 ** 20;
/** What a server takes of a video: a message of 32 MiB holds it in base64. */
const MOST_VIDEO_BYTES = 23 * 2 ** 20;
const SIDE = 1024;

/** @param {Blob} file of any sort the browser reads @returns {Promise<Float32Array<ArrayBuffer>>} at 16 kHz, one channel */
export async function readSound(file) {
  const context = new OfflineAudioContext(1, 1, INPUT_RATE_HZ);
  const decoded = await context.decodeAudioData(await file.arrayBuffer());
  const mixed = decoded.getChannelData(0).slice();
  for (let channel = 1; channel < decoded.numberOfChannels; channel++) {
    decoded.getChannelData(channel).forEach((sample, i) => (mixed[i] += sample));
  }
  return mixed.map((sample) => sample / decoded.numberOfChannels);
}

/** @param {Blob} file @returns {Promise<Blob>} one that a server takes: scaled down if it is larger */
async function fitting(file) {
  const image = await createImageBitmap(file);
  if (file.size <= MOST_BYTES && Math.max(image.width, image.height) <= 2048) return file;
  const scale = Math.min(1, SIDE / Math.max(image.width, image.height));
  const canvas = new OffscreenCanvas(Math.round(image.width * scale), Math.round(image.height * scale));
  canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.convertToBlob({ type: "image/jpeg", quality: 0.85 });
}

/** A video that no server takes for its size. */
export class TooLarge extends Error {}

/**
 * @typedef {{type: "image" | "video", data: string} | {type: "audio", data: string, sample_rate: number}} Part
 */

/** A picture, a recording or a video as a part of a message. @param {File} file @returns {Promise<{part: Part, shown: Blob | null}>} */
export async function asPart(file) {
  if (file.type.startsWith("video/") || file.name.endsWith(".mkv")) {
    if (file.size > MOST_VIDEO_BYTES) throw new TooLarge();
    return { part: { type: "video", data: encodeBytes(new Uint8Array(await file.arrayBuffer())) }, shown: file };
  }
  if (file.type.startsWith("image/")) {
    const shown = await fitting(file);
    return { part: { type: "image", data: encodeBytes(new Uint8Array(await shown.arrayBuffer())) }, shown };
  }
  const data = encodeFloat32(await readSound(file));
  return { part: { type: "audio", data, sample_rate: INPUT_RATE_HZ }, shown: null };
}
