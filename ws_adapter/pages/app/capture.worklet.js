/**
 * Cuts the input into units of exactly one second at 16 kHz. The number of samples is the clock, so late calls of the
 * page cause no drift.
 */

import { Resampler } from "./resampler.js";

const RATE_HZ = 16_000;
const UNIT = 16_000;

/** Seconds between two reported levels. */
const LEVEL_S = 0.05;

class Capture extends AudioWorkletProcessor {
  constructor() {
    super();
    this.resampler = new Resampler(sampleRate, RATE_HZ);
    this.unit = new Float32Array(UNIT);
    this.filled = 0;
    this.isRunning = false;
    this.peak = 0;
    this.since = 0;
    this.silence = new Float32Array(128);
    /** @type {Float32Array | null} a recording that replaces the microphone, from the next unit on */
    this.recording = null;
    this.played = 0;
    this.port.onmessage = ({ data }) => this.handle(data);
  }

  /** @param {{running?: boolean, recording?: Float32Array}} data */
  handle({ running, recording }) {
    if (recording) {
      this.recording = recording;
      this.played = 0;
    }
    if (running === undefined) return;
    if (this.isRunning && !running) this.port.postMessage({ rest: this.unit.slice(0, this.filled) });
    this.isRunning = running;
    this.filled = 0;
  }

  /** @param {Float32Array[][]} inputs one, of one channel; without a connection there is none, which counts as silence */
  process(inputs) {
    const samples = this.resampler.push(inputs[0][0] ?? this.silence);
    if (this.isRunning) this.cut(samples);
    else this.measure(samples);
    return true;
  }

  /** @param {Float32Array} samples */
  cut(samples) {
    for (let i = 0; i < samples.length; ) {
      const part = samples.subarray(i, i + UNIT - this.filled);
      if (this.recording && (this.played || !this.filled)) this.overlay(part, this.recording);
      this.measure(part);
      this.unit.set(part, this.filled);
      this.filled += part.length;
      i += part.length;
      if (this.filled < UNIT) return;
      this.port.postMessage({ unit: this.unit }, [this.unit.buffer]);
      this.unit = new Float32Array(UNIT);
      this.filled = 0;
    }
  }

  /** Replaces microphone samples by the recording. @param {Float32Array} part @param {Float32Array} recording */
  overlay(part, recording) {
    if (!this.played) this.port.postMessage({ began: true });
    part.fill(0);
    part.set(recording.subarray(this.played, this.played + part.length));
    this.played += part.length;
    if (this.played >= recording.length) this.recording = null;
  }

  /** @param {Float32Array} samples */
  measure(samples) {
    for (const sample of samples) this.peak = Math.max(this.peak, Math.abs(sample));
    this.since += samples.length;
    if (this.since < LEVEL_S * RATE_HZ) return;
    this.port.postMessage({ level: this.peak });
    this.peak = 0;
    this.since = 0;
  }
}

registerProcessor("capture", Capture);
