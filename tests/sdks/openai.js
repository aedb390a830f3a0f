// A conversation by OpenAI's SDK for JavaScript, as its users hold one: a typed question answered in writing,
// then a spoken one answered aloud. Prints what came as one line of JSON.
//
//     node --experimental-websocket openai.js websocket|ws https://HOST:PORT/v1 KEY MODEL QUESTION.pcm
//
// `websocket` is the client for browsers, on the WebSocket of the platform; `ws` the one for servers. The
// question is 24 kHz, one channel, 16-bit PCM without a header.
import { readFileSync } from "node:fs";

import OpenAI from "openai";
import { OpenAIRealtimeWebSocket } from "openai/realtime/websocket";
import { OpenAIRealtimeWS } from "openai/realtime/ws";

const [flavour, baseURL, apiKey, model, question] = process.argv.slice(2);
const client = new OpenAI({ apiKey, baseURL, dangerouslyAllowBrowser: true });
const realtime =
  flavour === "ws"
    ? await OpenAIRealtimeWS.create(client, { model })
    : await OpenAIRealtimeWebSocket.create(client, { model, dangerouslyAllowBrowser: true });
const told = { events: [], errors: [], text: "", transcript: "", audioBytes: 0, protocol: "", close: 0 };

const answers = [];
realtime.on("event", (event) => told.events.push(event.type));
realtime.on("error", (error) => told.errors.push(error.error?.code ?? String(error)));
realtime.on("response.output_text.delta", (event) => (told.text += event.delta));
realtime.on("response.output_audio_transcript.delta", (event) => (told.transcript += event.delta));
realtime.on("response.output_audio.delta", (event) => {
  told.audioBytes += Buffer.from(event.delta, "base64").length;
});
realtime.on("session.created", () => {
  const audio = { input: { turn_detection: null } };
  realtime.send({
    type: "session.update",
    session: { type: "realtime", output_modalities: ["text"], audio },
  });
  const content = [{ type: "input_text", text: "what is your name" }];
  realtime.send({ type: "conversation.item.create", item: { type: "message", role: "user", content } });
  realtime.send({ type: "response.create" });
});
realtime.on("response.done", ({ response }) => {
  answers.push(response.status);
  if (answers.length === 2) return realtime.close();
  const pcm = readFileSync(question);
  for (let at = 0; at < pcm.length; at += 4800) {
    const audio = pcm.subarray(at, at + 4800).toString("base64");
    realtime.send({ type: "input_audio_buffer.append", audio });
  }
  realtime.send({ type: "input_audio_buffer.commit" });
  realtime.send({ type: "response.create", response: { output_modalities: ["audio"] } });
});
realtime.socket.addEventListener("close", ({ code }) => {
  told.close = code;
  told.protocol = realtime.socket.protocol;
  console.log(JSON.stringify({ ...told, answers }));
});
