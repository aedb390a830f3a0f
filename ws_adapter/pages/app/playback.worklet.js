/**
 * Plays the model's answer from a ring buffer (jitter buffer). Playback starts when the start buffer is full, and
 * ends when the turn is played to its end. An interruption discards the buffer. Silence inside a turn is an underrun.
 */

import { Resampler } from "./resampler.js";

const RATE_HZ = 24_000;

/** Seconds of the ring. A model may send a whole answer at once; samples beyond a minute are dropped. */
const RING_S = 60;

/** Seconds between two reports. */
const REPORT_S = 0.1;

class Playback extends AudioWorkletProcessor {
  constructor() {
    super();
    this.ring = new Float32Array(Math.ceil(RING_S * sampleRate));
    this.read = 0;
    this.held = 0;
    this.startS = 0.2;
    this.isPlaying = false;
    this.hasEnded = true;
    this.underruns = 0;
    this.lost = 0;
    this.peak = 0;
    this.since = 0;
    this.resampler = new Resampler(RATE_HZ, sampleRate);
    this.port.onmessage = ({ data }) => this.handle(data);
  }

  /** @param {{samples?: Float32Array, ended?: boolean, flush?: boolean, startS?: number}} data */
  handle({ samples, ended, flush, startS }) {
    if (startS !== undefined) this.startS = startS;
    if (samples) {
      this.hasEnded = false;
      this.write(this.resampler.push(samples));
    }
    if (ended) this.end();
    if (flush) {
      this.held = 0;
      this.hasEnded = true;
      this.stop();
      this.resampler = new Resampler(RATE_HZ, sampleRate);
    }
  }

  end() {
    if (this.hasEnded) return;
    // The samples in the resampling filter still belong to the turn.
    this.write(this.resampler.push(new Float32Array(64)));
    this.hasEnded = true;
    if (!this.held) this.stop();
    this.postState();
  }

  /** @param {Float32Array} samples */
  write(samples) {
    const room = this.ring.length - this.held;
    this.lost += Math.max(0, samples.length - room);
    const kept = samples.subarray(0, room);
    const at = (this.read + this.held) % this.ring.length;
    const first = Math.min(kept.length, this.ring.length - at);
    this.ring.set(kept.subarray(0, first), at);
    this.ring.set(kept.subarray(first), 0);
    this.held += kept.length;
  }

  /** @param {Float32Array[][]} _inputs @param {Float32Array[][]} outputs one, of one channel */
  process(_inputs, outputs) {
    const out = outputs[0][0];
    if (!this.isPlaying && this.held && (this.hasEnded || this.held >= this.startS * sampleRate)) this.start();
    if (this.isPlaying) this.play(out);
    this.report(out.length);
    return true;
  }

  /** @param {Float32Array} out */
  play(out) {
    const count = Math.min(out.length, this.held);
    for (let i = 0; i < count; i++) {
      const sample = this.ring[(this.read + i) % this.ring.length];
      out[i] = sample;
      this.peak = Math.max(this.peak, Math.abs(sample));
    }
    this.read = (this.read + count) % this.ring.length;
    this.held -= count;
    if (this.held) return;
    if (!this.hasEnded) this.underruns += 1;
    this.stop();
  }

  start() {
    this.isPlaying = true;
    this.postState();
  }

  stop() {
    if (!this.isPlaying) return;
    this.isPlaying = false;
    this.postState();
  }

  /** @param {number} frames */
  report(frames) {
    this.since += frames;
    if (!this.isPlaying || this.since < REPORT_S * sampleRate) return;
    this.postState();
  }

  postState() {
    this.since = 0;
    const { isPlaying, underruns, lost, peak, hasEnded } = this;
    this.port.postMessage({ isPlaying, underruns, lost, hasEnded, level: peak, heldS: this.held / sampleRate });
    this.peak = 0;
  }
}

registerProcessor("playback", Playback);
