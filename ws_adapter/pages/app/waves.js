/** The levels of both voices over the last seconds, one above the other, in the colours of the canvas style. */

import { find } from "./view.js";

const BARS = 128;

export class Waves {
  constructor() {
    this.canvas = find("waves", HTMLCanvasElement);
    this.pen = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    this.you = new Float32Array(BARS);
    this.model = new Float32Array(BARS);
    this.isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.isDue = false;
    this.modelLevel = 0;
    this.draw();
  }

  /** One step of 50 ms. @param {number} you level, 0 to 1 @param {number} model */
  step(you, model) {
    this.you.copyWithin(0, 1);
    this.model.copyWithin(0, 1);
    this.you[BARS - 1] = you;
    this.model[BARS - 1] = model;
    if (this.isDue || this.isStill) return;
    this.isDue = true;
    requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.isDue = false;
    const { canvas, pen } = this;
    const style = getComputedStyle(canvas);
    const width = (canvas.width = canvas.clientWidth * devicePixelRatio || 640);
    const height = (canvas.height = canvas.clientHeight * devicePixelRatio || 120);
    const step = width / BARS;
    const middle = height / 2;
    for (let i = 0; i < BARS; i++) {
      const fade = 0.25 + (0.75 * i) / BARS;
      this.bar(i, step, middle, -this.you[i], style.color, fade);
      this.bar(i, step, middle, this.model[i], style.borderTopColor, fade);
    }
    pen.globalAlpha = 1;
  }

  /** @param {number} i @param {number} step @param {number} middle @param {number} level above 0: downwards @param {string} colour @param {number} fade */
  bar(i, step, middle, level, colour, fade) {
    const { pen } = this;
    const length = Math.max(1.5 * devicePixelRatio, Math.min(1, Math.abs(level)) * (middle - 4));
    pen.globalAlpha = Math.abs(level) > 0.005 ? fade : 0.25 * fade;
    pen.fillStyle = colour;
    pen.beginPath();
    const y = level < 0 || Object.is(level, -0) ? middle - length - 1 : middle + 1;
    pen.roundRect(i * step + step * 0.2, y, step * 0.6, length, step * 0.3);
    pen.fill();
  }
}
