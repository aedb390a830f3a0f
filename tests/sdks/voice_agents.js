// A conversation by OpenAI's SDK of voice agents for JavaScript, as its users hold one: a typed question that is
// answered aloud, and a second one that needs a tool. Prints what came as one line of JSON.
//
//     node [--conditions=browser --experimental-websocket] voice_agents.js ws://HOST:PORT/v1/realtime?model=M KEY M
//
// Events that do not fit its schemas this SDK drops without a word: `unknown` names them.
import { OpenAIRealtimeWebSocket, RealtimeAgent, RealtimeSession } from "@openai/agents-realtime";

const [url, apiKey, model] = process.argv.slice(2);
const transport = new OpenAIRealtimeWebSocket({ url, model, useInsecureApiKey: true });
const told = { events: [], unknown: [], errors: [], audioBytes: 0, answers: [], protocol: "" };

const emit = transport.emit.bind(transport);
let last;
transport.emit = (name, ...values) => {
  if (name === "*") {
    if (last) told.unknown.push(last);
    told.events.push((last = values[0].type));
  }
  if (name === last) last = undefined;
  return emit(name, ...values);
};

const agent = new RealtimeAgent({ name: "Antiphon", instructions: "Answer briefly." });
const config = { audio: { input: { turnDetection: { type: "server_vad" } } } };
const session = new RealtimeSession(agent, { transport, model, config });
session.on("error", ({ error }) => told.errors.push(JSON.stringify(error?.error ?? String(error))));
session.on("audio", ({ data }) => (told.audioBytes += data.byteLength));
session.on("agent_end", (_context, _agent, text) => {
  told.answers.push(text);
  if (told.answers.length === 1) return session.sendMessage("tell me a joke");
  told.history = session.history;
  told.protocol = transport.connectionState.websocket?.protocol ?? "";
  if (last) told.unknown.push(last);
  session.close();
  console.log(JSON.stringify(told));
});
await session.connect({ url, apiKey, model });
session.sendMessage("what is your name");
