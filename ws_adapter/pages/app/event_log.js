/** The log of all events on the wire, with a filter. Of long strings it shows the beginning and the length. */

import { t } from "./texts.js";
import { button, copy, element, find, inner, keepInView, make } from "./view.js";

const MOST_EVENTS = 1000;
const LONGEST_TEXT = 120;

/** @param {any} event */
function brief(event) {
  return JSON.stringify(event, (_, value) =>
    typeof value === "string" && value.length > LONGEST_TEXT
      ? `${value.slice(0, 24)}… (${value.length} characters)`
      : value,
  );
}

export class EventLog {
  constructor() {
    this.box = element("events");
    this.list = inner(this.box);
    this.filter = find("events-filter", HTMLInputElement);
    /** @type {string[]} */
    this.lines = [];
    this.filter.oninput = () => this.render();
    button("events-clear").onclick = () => {
      this.lines = [];
      this.render();
    };
    const copying = button("events-copy");
    copying.onclick = () => copy(copying, this.shown().join("\n"), t("copied"));
  }

  /** @param {"up" | "down"} direction @param {any} event */
  add(direction, event) {
    const at = new Date().toISOString().slice(11, 23);
    const line = `${at} ${direction === "up" ? "→" : "←"} ${brief(event)}`;
    this.lines.push(line);
    if (this.lines.length > MOST_EVENTS) this.lines.shift();
    if (!this.matches(line)) return;
    keepInView(this.box, () => this.list.append(this.item(line)));
    while (this.list.children.length > MOST_EVENTS) this.list.firstElementChild?.remove();
  }

  /** @param {string} line */
  matches(line) {
    return line.toLowerCase().includes(this.filter.value.trim().toLowerCase());
  }

  shown() {
    return this.lines.filter((line) => this.matches(line));
  }

  /** @param {string} line */
  item(line) {
    return make("li", line.includes(" → ") ? "up" : "down", line);
  }

  render() {
    this.list.replaceChildren(...this.shown().map((line) => this.item(line)));
  }
}
