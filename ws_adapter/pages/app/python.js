/**
 * Generates a Python program for the same conversation.
 *
 * @import {Settings} from "./client/dialects.js"
 */

/** @param {string} origin of the server @param {Settings} settings @param {boolean} needsKey */
export function asPython(origin, { instructions, config }, needsKey) {
  const url = JSON.stringify(origin.replace(/^http/, "ws"));
  const given = [
    ...(instructions ? [`instructions=${JSON.stringify(instructions)}`] : []),
    ...(config ? [`settings={${Object.entries(config).map(pair).join(", ")}}`] : []),
  ];
  const key = needsKey ? ', api_key=os.environ["ANTIPHON_API_KEY"]' : "";
  return `\
import asyncio
${needsKey ? "import os\n" : ""}import sys

import numpy as np

import antiphon

URL = ${url}


async def talk(question: str, answer: str) -> None:
    heard = []
    async with (
        antiphon.connect(URL${key}) as client,
        client.duplex(${given.join(", ")}) as session,
        session.stream_file(question),
    ):
        async for event in session:
            match event:
                case antiphon.TextDelta(text=text):
                    print(text, end="", flush=True)
                case antiphon.AudioDelta(samples=pcm):
                    heard.append(pcm)
                case antiphon.TurnEnd():
                    break
    if heard:
        antiphon.write_wav(answer, np.concatenate(heard), antiphon.OUTPUT_RATE_HZ)


asyncio.run(talk(*sys.argv[1:]))
`;
}

/** @param {[string, unknown]} entry */
function pair([name, value]) {
  const literal = typeof value === "boolean" ? (value ? "True" : "False") : JSON.stringify(value);
  return `${JSON.stringify(name)}: ${literal}`;
}
