/** The page: served models, key, language, colours and the three services. */

import { ChatView } from "./chat_view.js";
import { ConversationView } from "./conversation_view.js";
import { EventLog } from "./event_log.js";
import * as failures from "./failures.js";
import { asPython } from "./python.js";
import * as settings from "./settings.js";
import { bindTabs } from "./tabs.js";
import { chosenLanguage, otherLanguage, setLanguage, t } from "./texts.js";
import { TranscriptionView } from "./transcription_view.js";
import { button, copy, element, find } from "./view.js";

/**
 * @typedef {{id: string, modes: string[]}} Model
 * @typedef {Object} About the public data of the server, without a key
 * @property {string} version
 * @property {boolean} needs_key
 * @property {string[] | null} modes
 * @property {Model[]} models
 * @property {{audio: number, video: number}} limits_s
 * @property {number | null} tls_port
 */

const OUR_MODEL = "antiphon-mini";
const THEME = "antiphon.theme";

/** The modes for each tab; a tab needs one of them. @type {Record<string, string[]>} */
const NEEDS = { conversation: ["audio", "video"], chat: ["chat"], transcription: ["transcription"] };

/** @type {About} */
let about = {
  version: "",
  needs_key: false,
  modes: null,
  models: [],
  limits_s: { audio: 600, video: 300 },
  tls_port: null,
};
let key = ""; // in memory alone

/** Returns the models; null if the key is not accepted. @param {string} tried */
async function askForModels(tried) {
  const answer = await fetch("/v1/models", { headers: tried ? { Authorization: `Bearer ${tried}` } : {} });
  if (!answer.ok) return null;
  const { data } = await answer.json();
  return /** @type {Model[]} */ (data);
}

/** Returns the first model with a mode; empty if none is known. @param {string} mode */
async function model(mode) {
  if (!about.models.length) about.models = (await askForModels(key)) ?? [];
  return about.models.find(({ modes }) => modes.includes(mode))?.id ?? "";
}

const log = new EventLog();
const known = { key: () => key, about: () => about, model };
const conversation = new ConversationView(log, known);
const chat = new ChatView(log, known);
const transcription = new TranscriptionView(log, known);

function render() {
  const ids = about.models.map(({ id }) => id);
  const names = ids.join(", ");
  element("server").textContent = [names, about.version && t("server_version", { version: about.version })]
    .filter(Boolean)
    .join(" · ");
  const isOurs = !ids.length || ids.includes(OUR_MODEL);
  element("about-knows").textContent = isOurs ? t("about_mini") : t("about_other", { model: names });
  element("about-hears").textContent = isOurs ? t("about_hears") : "";
  for (const [name, modes] of Object.entries(NEEDS)) {
    const isServed = !about.modes || modes.some((mode) => about.modes?.includes(mode));
    button(`tab-${name}`).disabled = !isServed;
    button(`tab-${name}`).title = isServed ? "" : t("needs_model");
  }
  if (!element("trace").textContent || !conversation.conversation.traceId) {
    element("trace").textContent = conversation.conversation.traceId ?? t("trace_none");
  }
  conversation.render();
  transcription.render();
  chat.renderParts();
}

/** @param {"en" | "zh"} language @param {boolean} keep */
function applyLanguage(language, keep) {
  setLanguage(language, keep);
  button("language").lang = otherLanguage();
  render();
  void settings.listMicrophones();
}

/** @param {string} theme */
function applyTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  conversation.waves.draw();
}

function bindKey() {
  const form = find("key-form", HTMLFormElement);
  form.onsubmit = async (event) => {
    event.preventDefault();
    const input = find("key", HTMLInputElement);
    const tried = input.value.trim();
    const models = await askForModels(tried).catch(() => null);
    if (!models) {
      failures.show(await failures.whyClosed(tried));
      return;
    }
    failures.hide();
    key = tried;
    about.models = models;
    input.value = "";
    form.hidden = true;
    render();
    button("start").focus();
  };
}

function bindDeveloper() {
  const trace = button("trace-copy");
  trace.onclick = () => copy(trace, element("trace").textContent ?? "", t("copied"));
  const python = button("python-copy");
  python.onclick = () => copy(python, asPython(location.origin, settings.given(), about.needs_key), t("copied"));
}

async function begin() {
  applyTheme(localStorage.getItem(THEME) ?? "");
  applyLanguage(chosenLanguage(), false);
  settings.begin();
  bindTabs((name) => {
    failures.hide();
    element("figures-card").hidden = name !== "conversation";
  });
  bindKey();
  bindDeveloper();
  button("language").onclick = () => applyLanguage(otherLanguage(), true);
  button("theme").onclick = () => {
    const chosen = document.documentElement.dataset.theme;
    const isDark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    const theme = isDark ? "light" : "dark";
    localStorage.setItem(THEME, theme);
    applyTheme(theme);
  };
  try {
    about = await (await fetch("/page/about.json")).json();
  } catch {
    failures.show({ name: "unreachable" }, { retry: () => location.reload() });
  }
  find("key-form", HTMLFormElement).hidden = !about.needs_key;
  render();
  document.documentElement.dataset.ready = "yes";
}

void begin();
