/** The figures beside a conversation. */

import { t } from "./texts.js";
import { clock, element } from "./view.js";

const NOTHING = "–";

export class Figures {
  constructor() {
    this.bar = element("context-bar");
    this.reset();
  }

  reset() {
    for (const id of ["context", "time", "latency", "unit", "round-trip"]) this.set(id, NOTHING);
    this.set("dropped", "0");
    this.set("underruns", "0");
    this.bar.style.setProperty("--share", "0%");
  }

  /** @param {string} id @param {string} text */
  set(id, text) {
    element(`fig-${id}`).textContent = text;
  }

  /** @param {number} used tokens @param {number} max */
  context(used, max) {
    this.set("context", t("fig_context_of", { used: used.toLocaleString(), max: max.toLocaleString() }));
    this.bar.style.setProperty("--share", `${Math.min(100, (100 * used) / max).toFixed(1)}%`);
  }

  /** @param {number} seconds left, Infinity without a limit */
  time(seconds) {
    this.set("time", Number.isFinite(seconds) ? clock(seconds) : t("unlimited"));
  }

  /** @param {"latency" | "unit" | "round-trip"} id @param {number} ms */
  duration(id, ms) {
    this.set(id, t("milliseconds", { count: Math.round(ms) }));
  }

  /** @param {"dropped" | "underruns"} id @param {number} count */
  count(id, count) {
    this.set(id, String(count));
  }
}
