// Asks a question over WebSocket and prints the answer. Runs in Node 22 and newer as it is, in Node 20 with
// --experimental-websocket. The WebSocket is that of browsers; only files, Buffer and process are of Node.
//
//     node talk.js QUESTION.wav [ws://localhost:8006/v1/realtime?mode=audio]
//
// The question is 16 kHz, one channel, 16-bit PCM with a header of 44 bytes.
import { readFileSync } from "node:fs";

const [file, url = "ws://localhost:8006/v1/realtime?mode=audio"] = process.argv.slice(2);
const pcm = readFileSync(file).subarray(44);
const seconds = Math.ceil(pcm.length / 32_000) + 12; // of question and of silence for the answer
const socket = new WebSocket(url);
let next = 0;

function append() {
  const second = Buffer.concat([pcm.subarray(32_000 * next, 32_000 * ++next), Buffer.alloc(32_000)], 32_000);
  send({ type: "input.append", input: { audio: second.toString("base64"), format: "pcm16" } });
  if (next < seconds) setTimeout(append, 1000);
  else send({ type: "session.close" });
}

function send(event) {
  if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(event));
}

socket.onmessage = ({ data }) => {
  const event = JSON.parse(data);
  if (event.type === "session.queued") console.error(`waiting at place ${event.position}`);
  if (event.type === "session.queue_done") send({ type: "session.init", payload: {} });
  if (event.type === "session.created") append();
  if (event.kind === "text") process.stdout.write(event.text);
  if (event.reason === "turn_end") send({ type: "session.close" }); // event.audio: base64 of float32 at 24 kHz
  if (event.type === "error") console.error(event.error.message);
};
socket.onerror = () => console.error(`cannot talk to ${url}`) ?? process.exit(1);
socket.onclose = () => process.exit(process.stdout.write("\n") ? 0 : 1);
