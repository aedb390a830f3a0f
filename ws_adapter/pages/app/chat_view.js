/**
 * The chat on screen. The server stores no history, so each request sends the one kept here.
 *
 * @import {Part} from "./media.js"
 */

import { ask } from "./client/antiphon.js";
import * as failures from "./failures.js";
import { asPart, TooLarge } from "./media.js";
import { Sound } from "./sound.js";
import * as settings from "./settings.js";
import { t } from "./texts.js";
import { button, clock, element, find, inner, keepInView, make } from "./view.js";

/** The most attachments of one message that a server accepts. */
const MOST_PARTS = 4;

/** The most messages in a request; older ones are left out. */
const MOST_MESSAGES = 100;

/**
 * @typedef {{part: Part, name: string, shown: Blob | null}} Attached
 * @typedef {{role: "user" | "assistant" | "system", content: string | Array<object>}} Message
 */

export class ChatView {
  /** @param {import("./event_log.js").EventLog} log @param {{key: () => string, about: () => import("./main.js").About}} known */
  constructor(log, known) {
    this.log = log;
    this.known = known;
    /** @type {Message[]} */
    this.history = [];
    /** @type {Attached[]} */
    this.attached = [];
    /** @type {(() => void) | null} */
    this.cancel = null;
    /** @type {Sound | null} */
    this.sound = null;
    this.box = element("chat");
    this.list = inner(this.box);
    this.text = find("chat-text", HTMLTextAreaElement);
    this.bind();
  }

  bind() {
    const form = find("chat-form", HTMLFormElement);
    form.onsubmit = (event) => {
      event.preventDefault();
      void this.send();
    };
    this.text.onkeydown = (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      form.requestSubmit();
    };
    button("chat-stop").onclick = () => this.stop();
    button("chat-clear").onclick = () => {
      this.stop();
      this.history = [];
      this.list.replaceChildren();
      element("chat-empty").hidden = false;
    };
    const file = find("chat-file", HTMLInputElement);
    file.onchange = async () => {
      const chosen = [...(file.files ?? [])];
      file.value = "";
      for (const one of chosen.slice(0, MOST_PARTS - this.attached.length)) await this.attach(one);
    };
  }

  /** @param {File} file */
  async attach(file) {
    try {
      this.attached.push({ ...(await asPart(file)), name: file.name });
    } catch (error) {
      failures.show({ name: error instanceof TooLarge ? "video" : "file" });
    }
    this.renderParts();
  }

  renderParts() {
    const items = this.attached.map((one) => {
      const remove = make("button", "", `${named(one)} ×`);
      remove.type = "button";
      remove.ariaLabel = t("chat_remove", { name: one.name });
      remove.onclick = () => {
        this.attached = this.attached.filter((other) => other !== one);
        this.renderParts();
      };
      return make("li", "", remove);
    });
    element("chat-parts").replaceChildren(...items);
  }

  async send() {
    const text = this.text.value.trim();
    if (this.cancel || (!text && !this.attached.length)) return;
    failures.hide();
    const { attached } = this;
    this.attached = [];
    this.text.value = "";
    this.renderParts();
    this.history.push({
      role: "user",
      content: attached.length ? [...attached.map(({ part }) => part), ...(text ? [{ type: "text", text }] : [])] : text,
    });
    this.history = this.history.slice(-MOST_MESSAGES);
    const shown = attached.map(asNode);
    this.entry("you", ...shown, ...(text ? [text] : []));
    const speaks = find("chat-speak", HTMLInputElement).checked;
    if (speaks) await this.openSound();
    this.answer(speaks);
  }

  /** Opens the sound output; a chat uses no microphone. */
  async openSound() {
    if (this.sound) return;
    if (!failures.isSecure()) {
      failures.show({ name: "insecure" }, { tlsPort: this.known.about().tls_port });
      return;
    }
    const sound = new Sound({});
    await sound.open();
    this.sound = sound;
  }

  /** @param {boolean} speaks */
  answer(speaks) {
    const answer = this.entry("model");
    const said = document.createTextNode("");
    const note = make("small");
    answer.append(said, note);
    this.busy(true);
    this.sound?.setStartBuffer(settings.startBuffer());
    const { instructions, config } = settings.given();
    const messages = [...(instructions ? [{ role: "system", content: instructions }] : []), ...this.history];
    const generation = { temperature: config?.temperature, top_p: config?.top_p };
    const request = { messages, generation, tts: { enabled: speaks }, omni_mode: this.history.some(hasVideo) };
    const options = {
      base: location.origin,
      key: this.known.key(),
      request: /** @type {any} */ (request),
      onRaw: (/** @type {"up" | "down"} */ direction, /** @type {any} */ event) => this.log.add(direction, event),
    };
    this.cancel = ask(options, (event) => {
      switch (event.kind) {
        case "queued":
          note.textContent = t(event.isGuess ? "queued_guess" : "queued_detail", {
            position: event.position,
            length: event.length,
            wait: clock(event.waitS),
          });
          break;
        case "slot":
          note.textContent = "";
          break;
        case "text":
          keepInView(this.box, () => said.appendData(event.text));
          break;
        case "audio":
          this.sound?.say(event.samples);
          break;
        case "done":
          this.sound?.endTurn();
          this.history.push({ role: "assistant", content: event.text });
          keepInView(this.box, () => {
            note.textContent = t("chat_tokens", { input: event.inputTokens, output: event.outputTokens });
          });
          if (speaks && event.unsupported.includes("tts.enabled")) failures.show({ name: "no_voice" });
          this.busy(false);
          break;
        case "error":
          this.failed(failures.ofServer(event.code, event.message, event.traceId), answer);
          break;
        case "lost":
          void this.lost(event.opened, answer);
      }
    });
  }

  /** @param {boolean} opened @param {HTMLElement} answer */
  async lost(opened, answer) {
    this.failed(opened ? { name: "lost" } : await failures.whyClosed(this.known.key()), answer);
  }

  /** Removes the question, so that the user can ask it again. @param {failures.Failure} failure @param {HTMLElement} answer */
  failed(failure, answer) {
    this.sound?.flush();
    answer.remove();
    this.history.pop();
    this.busy(false);
    failures.show(failure);
  }

  stop() {
    if (!this.cancel) return;
    this.cancel();
    this.sound?.flush();
    this.history.pop();
    this.busy(false);
  }

  /** @param {boolean} isBusy */
  busy(isBusy) {
    if (!isBusy) this.cancel = null;
    button("chat-send").hidden = isBusy;
    button("chat-stop").hidden = !isBusy;
  }

  /** @param {string} side @param {...(Node | string)} children */
  entry(side, ...children) {
    element("chat-empty").hidden = true;
    const entry = make("li", side, make("span", "visually-hidden", `${t(side === "you" ? "you" : "model")}: `), ...children);
    keepInView(this.box, () => this.list.append(entry));
    return entry;
  }
}

const NAMES = /** @type {const} */ ({ image: "chat_picture", audio: "chat_recording", video: "chat_video" });

/** @param {Attached} one */
function named({ part, name }) {
  return t(NAMES[part.type], { name });
}

/** Whether a message has a video, whose sound needs `omni_mode`. @param {Message} message */
function hasVideo({ content }) {
  return Array.isArray(content) && content.some((part) => "type" in part && part.type === "video");
}

/** @param {Attached} one */
function asNode(one) {
  if (!one.shown) return make("small", "", named(one));
  if (one.part.type === "video") {
    const video = make("video");
    video.src = URL.createObjectURL(one.shown);
    video.controls = true;
    video.ariaLabel = named(one);
    return video;
  }
  const image = make("img");
  image.src = URL.createObjectURL(one.shown);
  image.alt = named(one);
  image.onload = () => URL.revokeObjectURL(image.src);
  return image;
}
