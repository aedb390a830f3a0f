/** Golden vectors: messages in proto3 JSON and in bytes, shared with the clients in other languages. */

import { strict as assert } from "node:assert";
import { readFileSync } from "node:fs";

import * as common from "../src/antiphon/v1/common.js";
import * as dispatch from "../src/antiphon/v1/dispatch_service.js";
import * as service from "../src/antiphon/v1/inference_service.js";

interface Codec {
  decode(bytes: Uint8Array): unknown;
  encode(message: unknown): { finish(): Uint8Array };
  toJSON(message: unknown): unknown;
}

interface Vector {
  readonly type: string;
  readonly json: unknown;
  readonly base64: string;
}

export function readVectors(path: string): Vector[] {
  return JSON.parse(readFileSync(path, "utf8"));
}

/** Decodes the bytes, compares the message with the JSON form, and encodes it again. */
export function checkVector({ type, json, base64 }: Vector): void {
  const codec = ({ ...common, ...dispatch, ...service } as unknown as Record<string, Codec | undefined>)[type];
  assert(codec, `there is no message ${type}`);
  const message = codec.decode(Buffer.from(base64, "base64"));
  assert.deepEqual(canonical(codec.toJSON(message)), canonical(json));
  assert.equal(Buffer.from(codec.encode(message).finish()).toString("base64"), base64);
}

/** Returns JSON with one form of numbers, durations and absent values, for a comparison. */
function canonical(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(canonical);
  if (typeof value === "number") return String(Math.fround(value));
  if (typeof value === "string" && /^\d+(\.\d+)?s$/.test(value)) {
    const [seconds = "0", fraction = ""] = value.slice(0, -1).split(".");
    return duration(seconds, fraction.padEnd(9, "0"));
  }
  if (typeof value !== "object" || value === null) return value;
  const { seconds, nanos, ...rest } = value as Record<string, unknown>;
  const isDuration = (seconds !== undefined || nanos !== undefined) && Object.keys(rest).length === 0;
  if (isDuration) return duration(String(seconds ?? 0), String(nanos ?? 0));
  const entries = Object.entries(value).filter(([, item]) => item !== undefined);
  return Object.fromEntries(entries.map(([name, item]) => [name, canonical(item)]));
}

function duration(seconds: string, nanos: string): string {
  return `${Number(seconds)}s ${Number(nanos)}ns`;
}
