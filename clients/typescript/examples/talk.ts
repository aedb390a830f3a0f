/**
 * Asks a worker a spoken question and saves its spoken answer.
 *
 *     npm run talk -- QUESTION.wav ANSWER.wav [HOST:PORT]
 *
 * The question is 16 kHz, one channel. The three calls of a session run side by side: each unit is written
 * ahead on all of them, and the worker puts the work in order by its number.
 */

import { randomUUID } from "node:crypto";

import { Metadata, credentials } from "@grpc/grpc-js";

import { AudioEncoding } from "../src/antiphon/v1/common.js";
import {
  InferenceServiceClient,
  PrefillRequest,
  SessionConfig,
  SessionMode,
  UnitEnd,
} from "../src/antiphon/v1/inference_service.js";
import { fromBytes, readWav, toBytes, writeWav, type Sound } from "./wav.js";

const PATIENCE_UNITS = 12; // The units of silence after the question, within which the answer must end.

const [questionFile, answerFile, target = "localhost:50051"] = process.argv.slice(2);
if (!questionFile || !answerFile) {
  console.error("Usage: npm run talk -- QUESTION.wav ANSWER.wav [HOST:PORT]");
  process.exit(2);
}

const question = load(questionFile);
const client = new InferenceServiceClient(target, credentials.createInsecure(), {
  "grpc.max_receive_message_length": 32 * 1024 * 1024,
});
const metadata = new Metadata();
metadata.set("antiphon-session-id", randomUUID());
const prefill = client.prefill(metadata);
const generate = client.generate(metadata);
const finalize = client.finalize(metadata);

const spoken: Float32Array[] = [];
let outputRate = 0;
let inputRate = 0;
let sent = 0n;
let isOver = false;

function load(file: string): Sound {
  try {
    return readWav(file);
  } catch (error) {
    console.error(error instanceof Error ? error.message : error);
    process.exit(1);
  }
}

/** Sends the next second of the question, or silence once it is over. */
function sendUnit(): void {
  const unit = ++sent;
  const from = (Number(unit) - 1) * inputRate;
  const audio = new Float32Array(inputRate);
  audio.set(question.samples.subarray(from, from + inputRate));
  const chunk = { encoding: AudioEncoding.AUDIO_ENCODING_PCM_F32LE, sampleRateHz: inputRate, data: toBytes(audio) };
  prefill.write(PrefillRequest.fromPartial({ unit, payload: { $case: "duplex", value: { audio: chunk } } }));
  generate.write({ unit, action: { $case: "run", value: { forceListen: false, sampling: undefined } } });
  finalize.write({ unit, keepLastToken: false });
}

/** Half-closing drains the session: units that were accepted are still answered. */
function end(): void {
  if (isOver) return;
  isOver = true;
  for (const call of [prefill, generate, finalize]) call.end();
}

prefill.on("data", ({ unit, result }) => {
  if (result?.$case === "ready") {
    inputRate = result.value.inputSampleRateHz;
    outputRate = result.value.outputSampleRateHz;
    if (question.rate !== inputRate) {
      console.error(`${questionFile} has ${question.rate} Hz; ${result.value.model} hears ${inputRate} Hz.`);
      process.exitCode = 1;
      end();
    } else {
      for (let ahead = 0; ahead < result.value.maxUnitsInFlight; ahead++) sendUnit();
    }
  } else if (result?.$case === "error") {
    console.error(`unit ${unit}: ${result.value.message}`);
  }
});

generate.on("data", ({ text, audio, done, goAway }) => {
  if (text) process.stdout.write(text.text);
  if (audio) spoken.push(fromBytes(audio.data));
  if (goAway) end();
  const isAnswered = done?.end === UnitEnd.UNIT_END_TURN;
  const isTooLate = Number(sent) > question.samples.length / inputRate + PATIENCE_UNITS;
  if (isAnswered || isTooLate) end();
});

finalize.on("data", () => {
  if (!isOver) sendUnit(); // one unit is closed: there is room for another
});

for (const call of [prefill, generate, finalize]) {
  call.on("error", (error) => {
    // The worker ends all three calls alike; one message is enough.
    if (process.exitCode !== 1) console.error(error.message);
    process.exitCode = 1;
    client.close();
  });
}

generate.on("end", () => {
  process.stdout.write("\n");
  client.close();
  const samples = new Float32Array(spoken.reduce((length, piece) => length + piece.length, 0));
  let at = 0;
  for (const piece of spoken) {
    samples.set(piece, at);
    at += piece.length;
  }
  if (samples.length) writeWav(answerFile, { rate: outputRate, samples });
});

prefill.write(
  PrefillRequest.fromPartial({
    unit: 0n,
    payload: { $case: "config", value: SessionConfig.fromPartial({ mode: SessionMode.SESSION_MODE_AUDIO }) },
  }),
);
