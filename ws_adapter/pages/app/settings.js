/**
 * The settings of the page in the form of the protocol client.
 *
 * @import {Settings} from "./client/dialects.js"
 */

import { encodeBytes } from "./client/antiphon.js";
import { microphones } from "./sound.js";
import { t } from "./texts.js";
import { button, element, find, make } from "./view.js";

const CONFIG = "[data-config]";

/** @type {string | undefined} */
let voice;

/** Binds the controls that do more than hold a value. */
export function begin() {
  const file = find("set-voice", HTMLInputElement);
  const clear = button("voice-clear");
  file.onchange = async () => {
    const chosen = file.files?.[0];
    voice = chosen && encodeBytes(new Uint8Array(await chosen.arrayBuffer()));
    clear.hidden = !voice;
  };
  clear.onclick = () => {
    voice = undefined;
    file.value = "";
    clear.hidden = true;
  };
  navigator.mediaDevices?.addEventListener("devicechange", listMicrophones);
}

/** Fills the list of microphones, and keeps the chosen one. */
export async function listMicrophones() {
  const select = find("set-microphone", HTMLSelectElement);
  const chosen = select.value;
  const named = (await microphones()).filter(({ label }) => label);
  const options = named.map(({ deviceId, label }) => new Option(label, deviceId));
  select.replaceChildren(new Option(t("set_microphone_default"), ""), ...options);
  if (options.some(({ value }) => value === chosen)) select.value = chosen;
}

export function microphone() {
  return find("set-microphone", HTMLSelectElement).value;
}

/** Returns the start buffer: seconds of sound that are buffered before an answer begins. */
export function startBuffer() {
  return Number(find("set-buffer", HTMLSelectElement).value) / 1000;
}

export function speaks() {
  return find("set-speak", HTMLInputElement).checked;
}

export function dialect() {
  return /** @type {"realtime" | "earlier" | "duplex"} */ (find("dialect", HTMLSelectElement).value);
}

/** Returns the settings that differ from the server's defaults. @returns {Settings} */
export function given() {
  /** @type {Record<string, number | boolean>} */
  const config = {};
  for (const input of element("settings").querySelectorAll(CONFIG)) {
    const { value, dataset } = /** @type {HTMLInputElement} */ (input);
    if (value !== "" && dataset.config) config[dataset.config] = Number(value);
  }
  if (!speaks()) config.generate_audio = false;
  const instructions = find("set-prompt", HTMLTextAreaElement).value.trim();
  return {
    instructions: instructions || undefined,
    config: Object.keys(config).length ? config : undefined,
    voice: voice ? { audio: voice } : undefined,
  };
}
