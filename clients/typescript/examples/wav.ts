/** WAV files of one channel: 16-bit or 32-bit float PCM in, 16-bit out. */

import { readFileSync, writeFileSync } from "node:fs";

export interface Sound {
  readonly rate: number;
  /** Between -1 and 1. */
  readonly samples: Float32Array;
}

/** Throws an `Error` that says what is wrong with the file. */
export function readWav(path: string): Sound {
  const file = readFileSync(path);
  if (file.toString("latin1", 0, 4) !== "RIFF" || file.toString("latin1", 8, 12) !== "WAVE") {
    throw new Error(`${path} is not a WAV file.`);
  }
  let format: { code: number; channels: number; rate: number; bits: number } | undefined;
  for (let at = 12; at + 8 <= file.length; ) {
    const name = file.toString("latin1", at, at + 4);
    const size = file.readUInt32LE(at + 4);
    const body = file.subarray(at + 8, at + 8 + size);
    if (name === "fmt ") {
      format = {
        code: body.readUInt16LE(0),
        channels: body.readUInt16LE(2),
        rate: body.readUInt32LE(4),
        bits: body.readUInt16LE(14),
      };
    } else if (name === "data" && format) {
      return { rate: format.rate, samples: decode(path, format, body) };
    }
    at += 8 + size + (size % 2);
  }
  throw new Error(`${path} holds no sound.`);
}

function decode(path: string, format: { code: number; channels: number; bits: number }, data: Buffer): Float32Array {
  const { code, channels, bits } = format;
  if (channels !== 1) throw new Error(`${path} has ${channels} channels; only one can be sent.`);
  if (code === 1 && bits === 16) {
    return Float32Array.from({ length: data.length >> 1 }, (_, i) => data.readInt16LE(2 * i) / 32768);
  }
  if (code === 3 && bits === 32) {
    return Float32Array.from({ length: data.length >> 2 }, (_, i) => data.readFloatLE(4 * i));
  }
  throw new Error(`${path} is neither 16-bit nor 32-bit float PCM.`);
}

export function writeWav(path: string, { rate, samples }: Sound): void {
  const file = Buffer.alloc(44 + 2 * samples.length);
  file.write("RIFF", 0, "latin1");
  file.writeUInt32LE(file.length - 8, 4);
  file.write("WAVEfmt ", 8, "latin1");
  file.writeUInt32LE(16, 16);
  file.writeUInt16LE(1, 20);
  file.writeUInt16LE(1, 22);
  file.writeUInt32LE(rate, 24);
  file.writeUInt32LE(2 * rate, 28);
  file.writeUInt16LE(2, 32);
  file.writeUInt16LE(16, 34);
  file.write("data", 36, "latin1");
  file.writeUInt32LE(2 * samples.length, 40);
  samples.forEach((sample, i) => file.writeInt16LE(Math.round(Math.max(-1, Math.min(1, sample)) * 32767), 44 + 2 * i));
  writeFileSync(path, file);
}

/** The bytes of `AUDIO_ENCODING_PCM_F32LE`. */
export function toBytes(samples: Float32Array): Buffer {
  const bytes = Buffer.alloc(4 * samples.length);
  samples.forEach((sample, i) => bytes.writeFloatLE(sample, 4 * i));
  return bytes;
}

export function fromBytes(bytes: Uint8Array): Float32Array {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  return Float32Array.from({ length: bytes.byteLength >> 2 }, (_, i) => view.getFloat32(4 * i, true));
}
