/** Helpers that find and make elements. */

/** @template {HTMLElement} T @param {string} id @param {new () => T} kind @returns {T} */
export function find(id, kind) {
  const node = document.getElementById(id);
  if (!(node instanceof kind)) throw new Error(`the page has no ${kind.name} #${id}`);
  return node;
}

/** @param {string} id */
export function button(id) {
  return find(id, HTMLButtonElement);
}

/** @param {string} id */
export function element(id) {
  return find(id, HTMLElement);
}

/**
 * @template {keyof HTMLElementTagNameMap} K @param {K} tag @param {string} [name] its class
 * @param {...(Node | string)} children
 */
export function make(tag, name = "", ...children) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  node.append(...children);
  return node;
}

/** The list in a box that scrolls. @param {HTMLElement} box */
export function inner(box) {
  return /** @type {HTMLOListElement} */ (box.firstElementChild);
}

/** Keeps a growing list in view, unless its reader has scrolled up. @param {HTMLElement} box @param {() => void} grow */
export function keepInView(box, grow) {
  const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  grow();
  if (atEnd) box.scrollTop = box.scrollHeight;
}

/** @param {number} seconds as `m:ss` */
export function clock(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

/** Copies a text and says so on the button for a moment. @param {HTMLButtonElement} from @param {string} text @param {string} said */
export async function copy(from, text, said) {
  await write(text);
  const before = from.textContent;
  from.textContent = said;
  setTimeout(() => (from.textContent = before), 1500);
}

/** Copies a text; without https only the deprecated `execCommand` works. @param {string} text */
async function write(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = make("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
