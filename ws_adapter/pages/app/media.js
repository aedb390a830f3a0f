/** Conversion of the user's files to the form of the protocols. */

import { encodeBytes, encodeFloat32, INPUT_RATE_HZ } from "./client/antiphon.js";

/** The most bytes of a picture that a server accepts. */
const MOST_BYTES = 2 ** 20;
/** The most bytes of a video: as base64 it must fit into a message of 32 MiB. */
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

/** @param {Blob} file @returns {Promise<Blob>} a picture that a server accepts, scaled down if needed */
async function fitting(file) {
  const image = await createImageBitmap(file);
  if (file.size <= MOST_BYTES && Math.max(image.width, image.height) <= 2048) return file;
  const scale = Math.min(1, SIDE / Math.max(image.width, image.height));
  const canvas = new OffscreenCanvas(Math.round(image.width * scale), Math.round(image.height * scale));
  canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.convertToBlob({ type: "image/jpeg", quality: 0.85 });
}

/** A video is too large for a server. */
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
