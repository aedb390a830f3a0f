/** The time line: the user's speech and pictures, and the model's answers. */

import { t } from "./texts.js";
import { clock, element, inner, keepInView, make } from "./view.js";

/** The most entries and pictures, so that a page that runs for hours does not grow. */
const MOST_ENTRIES = 400;
const MOST_PICTURES = 40;

/** The most bars of one wave, of 50 ms each: ten seconds. */
const MOST_BARS = 200;

const SVG = "http://www.w3.org/2000/svg";

export class TimeLine {
  constructor() {
    this.box = element("timeline");
    this.list = inner(this.box);
    this.empty = element("timeline-empty");
    this.begin = 0;
    /** @type {HTMLImageElement[]} */
    this.pictures = [];
  }

  /** Starts a new conversation, below the earlier ones. */
  restart() {
    this.begin = performance.now();
  }

  /** @param {string} side @param {string} who @param {number} [at] milliseconds, as `performance.now()` */
  add(side, who, at = performance.now()) {
    const body = make("div", "", make("span", "who", who));
    const entry = make("li", side, make("time", "", clock((at - this.begin) / 1000)), body);
    this.empty.hidden = true;
    keepInView(this.box, () => this.list.append(entry));
    while (this.list.children.length > MOST_ENTRIES) this.list.firstElementChild?.remove();
    return body;
  }

  /** @param {string} text */
  note(text) {
    this.add("system", t("system")).append(make("div", "note", text));
  }

  /** Adds an entry for the user's speech from now on. @param {string} text its known text */
  heard(text) {
    return new Heard(this, this.add("you", t("you")), text);
  }

  /** Adds an entry for the model's answer from now on. */
  said() {
    return new Said(this, this.add("model", t("model")));
  }

  /** @param {HTMLElement} body @param {Blob} picture */
  see(body, picture) {
    const image = make("img");
    image.src = URL.createObjectURL(picture);
    image.alt = t("camera");
    let strip = body.querySelector(".seen");
    if (!strip) body.append((strip = make("div", "seen")));
    keepInView(this.box, () => strip.append(image));
    this.pictures.push(image);
    const oldest = this.pictures.length > MOST_PICTURES && this.pictures.shift();
    if (oldest) {
      URL.revokeObjectURL(oldest.src);
      oldest.remove();
    }
  }
}

/** An entry for the user's speech, with a growing wave. */
class Heard {
  /** @param {TimeLine} line @param {HTMLElement} body @param {string} text */
  constructor(line, body, text) {
    this.line = line;
    this.body = body;
    this.bars = 0;
    this.text = make("span", text ? "said" : "note", text);
    this.wave = document.createElementNS(SVG, "svg");
    this.wave.classList.add("wave");
    this.wave.setAttribute("viewBox", `0 0 ${MOST_BARS} 20`);
    this.wave.setAttribute("preserveAspectRatio", "none");
    this.wave.setAttribute("aria-hidden", "true");
    body.append(this.text, this.wave);
  }

  /** @param {number} level 0 to 1 */
  level(level) {
    if (this.bars === MOST_BARS) return;
    const height = Math.max(0.8, Math.min(1, level * 1.6) * 20);
    const bar = document.createElementNS(SVG, "rect");
    bar.setAttribute("x", String(this.bars++));
    bar.setAttribute("y", String((20 - height) / 2));
    bar.setAttribute("width", "0.7");
    bar.setAttribute("height", String(height));
    this.wave.append(bar);
  }

  /** @param {Blob} picture */
  saw(picture) {
    this.line.see(this.body, picture);
  }

  /** @param {number} seconds */
  end(seconds) {
    if (!this.text.textContent) this.text.textContent = t("you_spoke", { seconds: seconds.toFixed(1) });
  }
}

/** An entry for an answer of the model. */
class Said {
  /** @param {TimeLine} line @param {HTMLElement} body */
  constructor(line, body) {
    this.line = line;
    this.body = body;
    this.text = make("span", "said");
    body.append(this.text);
  }

  /** @param {string} text */
  say(text) {
    keepInView(this.line.box, () => this.text.append(text));
  }

  interrupt() {
    this.body.append(" ", make("span", "cut", `— ${t("interrupted")}`));
  }
}
