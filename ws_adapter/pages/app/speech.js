/** Speech detection by level alone, for the time line and the measured latency; the model does not use it. */

const VOICED = 0.02;

/** A shorter pause does not end the speech. */
const PAUSE_MS = 900;

/** A shorter sound, such as a key click, is no speech. */
const LEAST_MS = 150;

export class Speech {
  /** @param {{begin: () => void, level: (level: number) => void, end: (seconds: number) => void}} on */
  constructor(on) {
    this.on = on;
    this.isOpen = false;
    this.begun = 0;
    /** The time of the last voiced level; 0 before the first. */
    this.lastVoiced = 0;
  }

  /** @param {number} level the peak of 50 ms @param {number} now milliseconds */
  level(level, now) {
    const isVoiced = level > VOICED;
    if (isVoiced) {
      if (!this.isOpen && now - this.lastVoiced > PAUSE_MS) this.begun = now;
      this.lastVoiced = now;
    }
    if (!this.isOpen && isVoiced && now - this.begun >= LEAST_MS) {
      this.isOpen = true;
      this.on.begin();
    }
    if (!this.isOpen) return;
    this.on.level(level);
    if (now - this.lastVoiced > PAUSE_MS) this.end();
  }

  end() {
    if (!this.isOpen) return;
    this.isOpen = false;
    this.on.end((this.lastVoiced - this.begun) / 1000);
  }
}
