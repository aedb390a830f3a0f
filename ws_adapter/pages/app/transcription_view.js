/** Transcription on screen: from the microphone or from a recording. */

import { INPUT_RATE_HZ, TranscriptionSession } from "./client/antiphon.js";
import * as failures from "./failures.js";
import { readSound } from "./media.js";
import * as settings from "./settings.js";
import { Sound } from "./sound.js";
import { t } from "./texts.js";
import { button, copy, element, find } from "./view.js";

/** The most seconds of audio that are buffered while a socket opens. */
const MOST_EARLY = 10;

export class TranscriptionView {
  /** @param {import("./event_log.js").EventLog} log @param {{key: () => string, about: () => import("./main.js").About, model: (mode: string) => Promise<string>}} known */
  constructor(log, known) {
    this.log = log;
    this.known = known;
    /** @type {TranscriptionSession | null} */
    this.session = null;
    /** @type {Sound | null} */
    this.sound = null;
    this.isOpen = false;
    /** @type {Float32Array[]} */
    this.early = [];
    this.text = element("tr-text");
    button("tr-start").onclick = () => this.start();
    button("tr-stop").onclick = () => this.finish();
    const copying = button("tr-copy");
    copying.onclick = () => copy(copying, this.text.textContent ?? "", t("copied"));
    const file = find("tr-file", HTMLInputElement);
    file.onchange = async () => {
      const chosen = file.files?.[0];
      file.value = "";
      if (chosen) await this.read(chosen);
    };
  }

  async start() {
    if (this.sound || this.session) return;
    failures.hide();
    if (!failures.isSecure()) {
      failures.show({ name: "insecure" }, { tlsPort: this.known.about().tls_port });
      return;
    }
    const sound = (this.sound = new Sound({
      unit: (samples) => this.append(samples),
      rest: (samples) => this.rest(samples),
      level: (level) => (find("tr-level", HTMLMeterElement).value = level),
      lost: () => this.fail({ name: "device_lost" }),
    }));
    try {
      await sound.open();
      await sound.useMicrophone(settings.microphone());
    } catch (error) {
      this.fail(failures.ofDevice(error));
      return;
    }
    if (this.sound !== sound) return;
    // Speech is buffered while the socket opens.
    sound.run(true);
    await this.open(() => {
      this.isOpen = true;
      for (const samples of this.early.splice(0)) this.session?.append(samples);
    });
  }

  /** @param {Float32Array} samples */
  append(samples) {
    if (this.isOpen) this.session?.append(samples);
    else if (this.early.length < MOST_EARLY) this.early.push(samples);
  }

  /** @param {File} file */
  async read(file) {
    if (this.sound || this.session) return;
    failures.hide();
    let samples;
    try {
      samples = await readSound(file);
    } catch {
      this.fail({ name: "file" });
      return;
    }
    const session = await this.open(() => {
      for (let i = 0; i < samples.length; i += INPUT_RATE_HZ) {
        session.append(samples.subarray(i, i + INPUT_RATE_HZ));
      }
      session.finish();
    });
    this.showWaiting();
  }

  /** @param {() => void} [begun] */
  async open(begun = () => {}) {
    if (this.text.textContent) this.text.append("\n");
    const options = {
      base: location.origin,
      key: this.known.key(),
      model: await this.known.model("transcription"),
      onRaw: (/** @type {"up" | "down"} */ direction, /** @type {any} */ event) => this.log.add(direction, event),
    };
    const session = new TranscriptionSession(options, (event) => {
      switch (event.kind) {
        case "created":
          begun();
          break;
        case "text":
          this.text.append(event.text);
          break;
        case "done":
          this.release();
          break;
        case "error":
          this.fail(failures.ofServer(event.code, event.message));
          break;
        case "lost":
          void this.lost(event.opened);
      }
    });
    this.session = session;
    this.render();
    return session;
  }

  /** Stops the microphone; the last words follow after the incomplete last unit. */
  finish() {
    this.sound?.run(false);
    this.sound?.closeMicrophone();
    this.showWaiting();
  }

  showWaiting() {
    element("tr-note").textContent = t("tr_waiting");
    button("tr-stop").hidden = true;
  }

  /** @param {Float32Array} samples */
  rest(samples) {
    if (samples.length) this.append(samples);
    this.session?.finish();
  }

  /** @param {boolean} opened */
  async lost(opened) {
    this.release();
    this.fail(opened ? { name: "lost" } : await failures.whyClosed(this.known.key()));
  }

  /** @param {failures.Failure} failure */
  fail(failure) {
    this.release();
    failures.show(failure);
  }

  release() {
    void this.sound?.close();
    this.session?.close();
    this.sound = null;
    this.session = null;
    this.isOpen = false;
    this.early = [];
    this.render();
  }

  render() {
    const isRunning = Boolean(this.sound || this.session);
    button("tr-start").hidden = isRunning;
    button("tr-stop").hidden = !this.sound;
    element("tr-note").textContent = isRunning || this.text.textContent ? "" : t("tr_empty");
    find("tr-level", HTMLMeterElement).hidden = !this.sound;
    if (!this.sound) find("tr-level", HTMLMeterElement).value = 0;
  }
}
