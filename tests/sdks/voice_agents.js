// A conversation by OpenAI's SDK of voice agents for JavaScript, as its users hold one: two typed questions that
// are answered aloud with server_vad, or one that is spoken with the turn detection that the SDK asks for by itself.
// Prints what came as one line of JSON.
//
//     node [--conditions=browser --experimental-websocket] voice_agents.js ws://HOST:PORT/v1/realtime?model=M KEY M
//         [QUESTION.pcm|tool]
//
// With `tool` two requests are typed for a light that the agent has. The question is 24 kHz, one channel, 16-bit PCM without a header; it is sent as fast as it is spoken, and then
// silence.
//
// Events that do not fit its schemas this SDK drops without a word: `unknown` names them.
import { readFileSync } from "node:fs";

import { OpenAIRealtimeWebSocket, RealtimeAgent, RealtimeSession, tool } from "@openai/agents-realtime";
import { z } from "zod";

const [url, apiKey, model, given] = process.argv.slice(2);
const hasTool = given === "tool";
const question = hasTool ? undefined : given;
const typed = hasTool ? ["turn the light off", "turn on the light"] : ["tell me a joke", "what is your name"];
const transport = new OpenAIRealtimeWebSocket({ url, model, useInsecureApiKey: true });
const told = { turnDetection: "", events: [], unknown: [], errors: [], audioBytes: 0, answers: [], called: [], protocol: "" };

const emit = transport.emit.bind(transport);
let last, microphone;
let isAnswered = false;
transport.emit = (name, ...values) => {
  if (name === "*") {
    if (last) told.unknown.push(last);
    told.events.push((last = values[0].type));
    if (last === "session.updated") told.turnDetection = values[0].session.audio.input.turn_detection.type;
  }
  if (name === last) last = undefined;
  return emit(name, ...values);
};

const setLight = tool({
  name: "set_light",
  description: "Turn the light on or off.",
  parameters: z.object({ state: z.enum(["on", "off"]) }),
  execute: async ({ state }) => {
    told.called.push(state);
    return `The light is ${state}.`;
  },
});
const agent = new RealtimeAgent({
  name: "Antiphon",
  instructions: "Answer briefly.",
  tools: hasTool ? [setLight] : [],
});
const config = question ? undefined : { audio: { input: { turnDetection: { type: "server_vad" } } } };
const session = new RealtimeSession(agent, { transport, model, config });
session.on("error", ({ error }) => told.errors.push(JSON.stringify(error?.error ?? String(error))));
session.on("audio", ({ data }) => (told.audioBytes += data.byteLength));
session.on("agent_end", (_context, _agent, text) => {
  if (hasTool && !text) return; // a call, which is answered next
  told.answers.push(text);
  if (!question && typed.length) return session.sendMessage(typed.pop());
  isAnswered = true;
  end();
});
session.on("history_updated", end);

// That the user has stopped may be heard after the model has answered.
function end() {
  if (!isAnswered || told.history || !session.history.some(({ role }) => role === "user")) return;
  told.history = session.history;
  told.protocol = transport.connectionState.websocket?.protocol ?? "";
  if (last) told.unknown.push(last);
  clearInterval(microphone);
  session.close();
  console.log(JSON.stringify(told));
}

await session.connect({ url, apiKey, model });
if (question) {
  const pcm = readFileSync(question);
  const begun = performance.now();
  let sent = 0;
  microphone = setInterval(() => {
    for (; sent < performance.now() - begun; sent += 20) {
      const piece = new Uint8Array(960);
      piece.set(pcm.subarray(sent * 48, sent * 48 + 960));
      session.sendAudio(piece.buffer);
    }
  }, 20);
} else {
  session.sendMessage(typed.pop());
}
