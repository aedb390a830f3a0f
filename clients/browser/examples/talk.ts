/**
 * Asks a recorded question over WebSocket and prints the answer. A lost connection is opened again, and the
 * conversation goes on where it was.
 *
 *     node --experimental-websocket dist/talk.js QUESTION.wav [ws://localhost:8006]
 *
 * The question is 16 kHz, one channel, 16-bit PCM with a header of 44 bytes. Node 22 needs no flag.
 */

import { readFileSync } from "node:fs";

import { DuplexSession, INPUT_RATE_HZ, type ConversationEvent } from "antiphon-browser";

const PATIENCE_S = 12; // The seconds of silence after the question, within which the answer must end.

const [file, base = "ws://localhost:8006"] = process.argv.slice(2);
if (!file) {
  console.error("Usage: node dist/talk.js QUESTION.wav [ws://localhost:8006]");
  process.exit(2);
}

const question = readQuestion(file);
const units = Math.ceil(question.length / INPUT_RATE_HZ) + PATIENCE_S;
let sent = 0;
let isConnected = false;
let timer: ReturnType<typeof setInterval> | undefined;

const session = new DuplexSession({ base, reconnect: true }, handle);

function readQuestion(name: string): Float32Array {
  const bytes = readFileSync(name).subarray(44);
  return Float32Array.from({ length: bytes.length >> 1 }, (_, i) => bytes.readInt16LE(2 * i) / 32768);
}

/** Sends the next second of the question, then silence; waits while there is no connection. */
function append(): void {
  if (!isConnected) return;
  if (sent === units) return session.close();
  const samples = new Float32Array(INPUT_RATE_HZ);
  samples.set(question.subarray(sent * INPUT_RATE_HZ, ++sent * INPUT_RATE_HZ));
  session.append(samples);
}

function handle(event: ConversationEvent): void {
  switch (event.kind) {
    case "queued":
      console.error(`waiting at place ${event.position}`);
      break;
    case "created":
      isConnected = true;
      timer = setInterval(append, 1000);
      append();
      break;
    case "text":
      process.stdout.write(event.text);
      break;
    case "turn_end":
      session.close();
      break;
    case "connection_lost":
      isConnected = false;
      console.error(`connection lost; the server waits ${event.windowS} s`);
      break;
    case "connection_resumed":
      isConnected = true;
      console.error("the conversation goes on");
      break;
    case "error":
      console.error(event.message);
      break;
    case "closed":
      end(0);
      break;
    case "lost":
      console.error(event.opened ? "the connection is lost" : `cannot connect to ${base}`);
      end(1);
  }
}

function end(code: number): void {
  clearInterval(timer);
  process.stdout.write("\n");
  process.exitCode = code;
}
