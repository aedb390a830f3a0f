/**
 * Resamples a stream with a windowed sinc: a polyphase filter, with one phase for each position of an output sample
 * between two input samples. The rate of a device differs from that of the protocol.
 */

/** Zero crossings of the sinc on either side: the stop band is 70 dB down, the delay under 2 ms. */
const REACH = 16;

/** The pass band as a fraction of that of the lower rate; the rest is the transition band. */
const PASS = 0.92;

/** @param {number} a @param {number} b @returns {number} */
function divisor(a, b) {
  return b ? divisor(b, a % b) : a;
}

/** @param {number} x in [-1, 1] */
function window(x) {
  // A Blackman window: its leakage into the band of speech is inaudible.
  return 0.42 + 0.5 * Math.cos(Math.PI * x) + 0.08 * Math.cos(2 * Math.PI * x);
}

export class Resampler {
  /** @param {number} from Hz, whole @param {number} to Hz, whole */
  constructor(from, to) {
    const shared = divisor(from, to);
    this.up = to / shared;
    this.down = from / shared;
    /** @type {Float32Array[]} */
    this.phases = [];
    if (this.up === this.down) return;
    const band = PASS * Math.min(1, to / from);
    this.half = Math.ceil(REACH / band);
    for (let phase = 0; phase < this.up; phase++) {
      const taps = new Float32Array(2 * this.half);
      let sum = 0;
      for (let i = 0; i < taps.length; i++) {
        const t = i - this.half + 1 - phase / this.up;
        const x = Math.PI * band * t;
        taps[i] = (x ? Math.sin(x) / x : 1) * (Math.abs(t) < this.half ? window(t / this.half) : 0);
        sum += taps[i];
      }
      this.phases.push(taps.map((tap) => tap / sum));
    }
    this.past = new Float32Array(2 * this.half - 1);
    /** Position of the next output sample from the start of `past`, in 1/up of an input sample. */
    this.at = 0;
  }

  /** @param {Float32Array} input of any length @returns {Float32Array} the output so far */
  push(input) {
    if (!this.phases.length) return input.slice();
    const past = /** @type {Float32Array} */ (this.past);
    const half = /** @type {number} */ (this.half);
    const all = new Float32Array(past.length + input.length);
    all.set(past);
    all.set(input, past.length);
    let at = /** @type {number} */ (this.at);
    const output = [];
    for (;;) {
      const start = Math.floor(at / this.up);
      if (start + 2 * half > all.length) break;
      const taps = this.phases[at % this.up];
      let sum = 0;
      for (let i = 0; i < taps.length; i++) sum += taps[i] * all[start + i];
      output.push(sum);
      at += this.down;
    }
    const used = Math.min(Math.floor(at / this.up), all.length);
    this.past = all.slice(used);
    this.at = at - used * this.up;
    return Float32Array.from(output);
  }
}
