/** The three services as tabs; arrow keys move between them, as ARIA requires. */

import { element } from "./view.js";

/** @param {(name: string) => void} chosen */
export function bindTabs(chosen) {
  const tabs = /** @type {HTMLButtonElement[]} */ ([...document.querySelectorAll('[role="tab"]')]);
  /** @param {HTMLButtonElement} tab */
  const choose = (tab) => {
    for (const other of tabs) {
      const isChosen = other === tab;
      other.setAttribute("aria-selected", String(isChosen));
      other.tabIndex = isChosen ? 0 : -1;
      element(other.getAttribute("aria-controls") ?? "").hidden = !isChosen;
    }
    chosen(tab.id.replace("tab-", ""));
  };
  tabs.forEach((tab, i) => {
    tab.onclick = () => choose(tab);
    tab.onkeydown = ({ key }) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[key];
      if (!step) return;
      const next = tabs[(i + step + tabs.length) % tabs.length];
      next.focus();
      choose(next);
    };
  });
}
