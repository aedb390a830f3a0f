/**
 * Checks the generated client against golden vectors and a real worker.
 *
 *     npm run conformance -- VECTORS.json HOST:PORT
 *
 * Prints one line for each check; exits with 1 if one failed.
 */

import { strict as assert } from "node:assert";

import { credentials, status, type ServiceError } from "@grpc/grpc-js";

import {
  InferenceServiceClient,
  SessionMode,
  UnitEnd,
  WorkerState,
  type GetInfoResponse,
} from "../src/antiphon/v1/inference_service.js";
import { Session } from "./session.js";
import { checkVector, readVectors } from "./vectors.js";

const [vectorFile, target] = process.argv.slice(2);
if (!vectorFile || !target) {
  console.error("Usage: npm run conformance -- VECTORS.json HOST:PORT");
  process.exit(2);
}

const client = new InferenceServiceClient(target, credentials.createInsecure());
let failures = 0;

async function check(name: string, run: () => void | Promise<void>): Promise<void> {
  try {
    await run();
    console.log(`ok      ${name}`);
  } catch (error) {
    failures += 1;
    console.log(`FAILED  ${name}\n        ${error instanceof Error ? error.message : error}`);
  }
}

/** Asserts that all three calls ended with this status and this reason in the details. */
function assertRefused(ends: (ServiceError | null)[], code: status, reason: string): void {
  for (const end of ends) {
    assert.equal(end?.code, code);
    const details = end.metadata.get("grpc-status-details-bin")[0];
    assert(details instanceof Buffer && details.includes(reason), `no ErrorInfo with ${reason}`);
  }
}

async function ready(): Promise<Session> {
  const session = new Session(client);
  session.configure();
  await session.prefill.until((all) => all.length === 1, "SessionReady");
  return session;
}

for (const [i, vector] of readVectors(vectorFile).entries()) {
  await check(`vector ${i}: ${vector.type}`, () => checkVector(vector));
}

await check("GetInfo tells of a ready worker", async () => {
  const info = await new Promise<GetInfoResponse>((resolve, reject) =>
    client.getInfo({}, (error, answer) => (error ? reject(error) : resolve(answer))),
  );
  assert.equal(info.state, WorkerState.WORKER_STATE_READY);
  assert(info.modes.includes(SessionMode.SESSION_MODE_AUDIO));
});

await check("unit 0 is answered by SessionReady with the values that apply", async () => {
  const session = await ready();
  const result = session.prefill.all[0]?.result;
  assert(result?.$case === "ready");
  assert.equal(result.value.effective?.seed, 7n);
  assert.equal(result.value.effective?.duplex?.forceListenCount, 0);
  session.end();
  assert.deepEqual(await session.ended(), [null, null, null]);
});

await check("every unit written ahead has its three answers, in order, and half-closing ends with OK", async () => {
  const session = await ready();
  for (let unit = 1n; unit <= 6n; unit++) {
    session.run(unit);
    if (unit >= 2n) await session.finalize.until((all) => all.length >= Number(unit) - 1, `the end of ${unit - 1n}`);
  }
  session.end();
  assert.deepEqual(await session.ended(), [null, null, null]);
  const units = [1n, 2n, 3n, 4n, 5n, 6n];
  assert.deepEqual(session.prefill.all.slice(1).map((answer) => answer.unit), units);
  assert.deepEqual(session.generate.all.filter((answer) => answer.done).map((answer) => answer.unit), units);
  assert.deepEqual(session.finalize.all.map((answer) => answer.unit), units);
});

await check("a unit that cannot be used fails alone", async () => {
  const session = await ready();
  session.run(1n, Buffer.alloc(3));
  session.run(2n);
  await session.finalize.until((all) => all.length === 2, "the end of unit 2");
  const [, bad, good] = session.prefill.all;
  assert(bad?.result?.$case === "error" && bad.result.value.reason === "AUDIO_INVALID");
  assert.equal(good?.result?.$case, "prefilled");
  const ends = session.generate.all.filter((answer) => answer.done).map((answer) => answer.done?.end);
  assert.equal(ends[0], UnitEnd.UNIT_END_FAILED);
  assert.notEqual(ends[1], UnitEnd.UNIT_END_FAILED);
  session.end();
  assert.deepEqual(await session.ended(), [null, null, null]);
});

await check("a cancel overtakes the unit that it names", async () => {
  const session = await ready();
  session.calls.generate.write({ unit: 1n, action: { $case: "cancel", value: {} } });
  session.run(1n);
  await session.finalize.until((all) => all.length === 1, "the end of unit 1");
  const done = session.generate.all.find((answer) => answer.done)?.done;
  assert.equal(done?.end, UnitEnd.UNIT_END_CANCELLED);
  session.end();
  assert.deepEqual(await session.ended(), [null, null, null]);
});

await check("a gap between units ends all three calls alike", async () => {
  const session = await ready();
  session.run(2n);
  assertRefused(await session.ended(), status.FAILED_PRECONDITION, "UNIT_OUT_OF_ORDER");
});

await check("a unit before the config ends all three calls alike", async () => {
  const session = new Session(client);
  session.run(1n);
  assertRefused(await session.ended(), status.FAILED_PRECONDITION, "CONFIG_REQUIRED");
});

await check("cancelling one call ends the session", async () => {
  const session = await ready();
  session.calls.finalize.cancel();
  const [prefill, generate] = await session.ended();
  assert.equal(prefill?.code, status.CANCELLED);
  assert.equal(generate?.code, status.CANCELLED);
});

client.close();
process.exit(failures ? 1 : 0);
