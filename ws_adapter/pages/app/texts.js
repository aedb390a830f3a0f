/** The texts of the page in the chosen language. */

import { EN } from "./en.js";
import { ZH } from "./zh.js";

/** @typedef {keyof typeof EN} Key */

/** @type {Record<"en" | "zh", Record<Key, string>>} */
const LANGUAGES = { en: EN, zh: ZH };
const STORED = "antiphon.language";

/** @type {"en" | "zh"} */
let language = "en";

/** @param {Key} key @param {Record<string, string | number>} [values] */
export function t(key, values = {}) {
  return LANGUAGES[language][key].replace(/\{(\w+)\}/g, (whole, name) => String(values[name] ?? whole));
}

/** Returns the language that the user chose before, else that of the browser. */
export function chosenLanguage() {
  const stored = localStorage.getItem(STORED);
  return (stored ?? navigator.language).startsWith("zh") ? "zh" : "en";
}

export function otherLanguage() {
  return language === "en" ? "zh" : "en";
}

/** @param {"en" | "zh"} chosen @param {boolean} [keep] */
export function setLanguage(chosen, keep = false) {
  language = chosen;
  if (keep) localStorage.setItem(STORED, chosen);
  document.documentElement.lang = chosen;
  document.title = t("title");
  for (const node of document.querySelectorAll("[data-t]")) node.textContent = t(key(node, "t"));
  for (const node of document.querySelectorAll("[data-t-label]")) {
    node.setAttribute("aria-label", t(key(node, "tLabel")));
  }
  for (const node of document.querySelectorAll("[data-t-placeholder]")) {
    node.setAttribute("placeholder", t(key(node, "tPlaceholder")));
  }
}

/** @param {Element} node @param {string} name @returns {Key} */
function key(node, name) {
  return /** @type {Key} */ (/** @type {HTMLElement} */ (node).dataset[name]);
}
