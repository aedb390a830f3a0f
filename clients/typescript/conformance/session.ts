/** The three calls of one session, and their responses. */

import { randomUUID } from "node:crypto";

import { Metadata, type ClientDuplexStream, type ServiceError } from "@grpc/grpc-js";

import { AudioEncoding } from "../src/antiphon/v1/common.js";
import {
  PrefillRequest,
  SessionConfig,
  SessionMode,
  type FinalizeRequest,
  type FinalizeResponse,
  type GenerateRequest,
  type GenerateResponse,
  type InferenceServiceClient,
  type PrefillResponse,
} from "../src/antiphon/v1/inference_service.js";

const PATIENCE_MS = 30_000;

/** The responses of one call in order, and its final status; null is OK. */
class Answers<Response> {
  readonly all: Response[] = [];
  private status: ServiceError | null | undefined;
  private news: () => void = () => {};

  constructor(call: ClientDuplexStream<never, Response>) {
    call.on("data", (response: Response) => {
      this.all.push(response);
      this.news();
    });
    call.on("error", (error: ServiceError) => this.over(error));
    call.on("end", () => this.over(null));
  }

  private over(status: ServiceError | null): void {
    // "end" also comes before an error.
    setImmediate(() => {
      if (this.status === undefined || this.status === null) this.status = status ?? this.status ?? null;
      this.news();
    });
  }

  async until(isThere: (all: Response[]) => boolean, what: string): Promise<void> {
    await this.wait(() => isThere(this.all) || !!this.status, what);
    if (!isThere(this.all)) throw this.status ?? new Error(`${what} did not come`);
  }

  async ended(): Promise<ServiceError | null> {
    await this.wait(() => this.status !== undefined, "the end of a call");
    await new Promise((resolve) => setImmediate(resolve));
    return this.status ?? null;
  }

  private async wait(isOver: () => boolean, what: string): Promise<void> {
    const deadline = Date.now() + PATIENCE_MS;
    while (!isOver()) {
      const left = deadline - Date.now();
      if (left <= 0) throw new Error(`${what} did not come within ${PATIENCE_MS / 1000} s`);
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, left);
        this.news = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
  }
}

export class Session {
  readonly prefill: Answers<PrefillResponse>;
  readonly generate: Answers<GenerateResponse>;
  readonly finalize: Answers<FinalizeResponse>;
  readonly calls: {
    prefill: ClientDuplexStream<PrefillRequest, PrefillResponse>;
    generate: ClientDuplexStream<GenerateRequest, GenerateResponse>;
    finalize: ClientDuplexStream<FinalizeRequest, FinalizeResponse>;
  };

  constructor(client: InferenceServiceClient) {
    const metadata = new Metadata();
    metadata.set("antiphon-session-id", randomUUID());
    this.calls = {
      prefill: client.prefill(metadata),
      generate: client.generate(metadata),
      finalize: client.finalize(metadata),
    };
    this.prefill = new Answers(this.calls.prefill as never);
    this.generate = new Answers(this.calls.generate as never);
    this.finalize = new Answers(this.calls.finalize as never);
  }

  configure(): void {
    const config = SessionConfig.fromPartial({
      mode: SessionMode.SESSION_MODE_AUDIO,
      duplex: { forceListenCount: 0 },
      seed: 7n,
    });
    this.calls.prefill.write(PrefillRequest.fromPartial({ unit: 0n, payload: { $case: "config", value: config } }));
  }

  /** Writes one unit of silence, or of `data`, to all three calls. */
  run(unit: bigint, data: Buffer = Buffer.alloc(4 * 16_000)): void {
    const audio = { encoding: AudioEncoding.AUDIO_ENCODING_PCM_F32LE, sampleRateHz: 16_000, data };
    this.calls.prefill.write(PrefillRequest.fromPartial({ unit, payload: { $case: "duplex", value: { audio } } }));
    this.calls.generate.write({ unit, action: { $case: "run", value: { forceListen: false, sampling: undefined } } });
    this.calls.finalize.write({ unit, keepLastToken: false });
  }

  end(): void {
    for (const call of Object.values(this.calls)) call.end();
  }

  /** Waits for the ends of the three calls and returns their statuses. */
  async ended(): Promise<(ServiceError | null)[]> {
    return Promise.all([this.prefill.ended(), this.generate.ended(), this.finalize.ended()]);
  }
}
