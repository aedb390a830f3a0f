/**
 * The conversation on screen.
 *
 * @import {Recording, State} from "./conversation.js"
 * @import {About} from "./main.js"
 */

import { Camera } from "./camera.js";
import { Conversation } from "./conversation.js";
import { EXAMPLES } from "./examples.js";
import * as failures from "./failures.js";
import { Figures } from "./figures.js";
import { readSound } from "./media.js";
import * as settings from "./settings.js";
import { Speech } from "./speech.js";
import { t } from "./texts.js";
import { TimeLine } from "./timeline.js";
import { button, clock, element, find, make } from "./view.js";
import { Waves } from "./waves.js";

const BUTTONS = ["mute", "pause", "force-listen"];

export class ConversationView {
  /** @param {import("./event_log.js").EventLog} log @param {{key: () => string, about: () => About}} known */
  constructor(log, known) {
    this.known = known;
    this.figures = new Figures();
    this.timeline = new TimeLine();
    this.waves = new Waves();
    this.camera = new Camera(find("preview", HTMLVideoElement));
    /** @type {ReturnType<TimeLine["heard"]> | null} */
    this.heard = null;
    /** @type {ReturnType<TimeLine["said"]> | null} */
    this.said = null;
    /** @type {Recording | null} */
    this.recording = null;
    /** @type {(() => void) | null} */
    this.retry = null;
    this.usesRecording = false;
    this.hasSpoken = false;
    this.modelLevel = 0;
    this.wasPlaying = false;
    this.isAnswered = true;
    /** The queue place, with the server's estimate and the time of its arrival. */
    this.place = { position: 0, length: 0, waitS: 0, isGuess: false, at: 0 };
    this.beganAt = 0;
    this.limitS = 0;
    this.contextMax = 8192;
    this.speech = new Speech({
      begin: () => (this.heard = this.timeline.heard(this.label())),
      level: (level) => this.heard?.level(level),
      end: (seconds) => {
        this.heard?.end(seconds);
        this.heard = null;
      },
    });
    this.conversation = new Conversation({
      state: () => this.render(),
      queued: (place) => {
        this.place = { ...place, at: performance.now() };
        this.render();
      },
      begun: () => this.begun(),
      unsupported: (fields) => this.timeline.note(t("note_unsupported", { fields: fields.join(", ") })),
      asked: (recording) => (this.recording = recording),
      level: (level) => this.level(level),
      played: (played) => this.played(played),
      saw: (picture) => this.saw(picture),
      text: (text) => (this.said ??= this.timeline.said()).say(text),
      turnOver: (interrupted) => this.turnOver(interrupted),
      figures: (figures) => this.figured(figures),
      failed: (failure) =>
        failures.show(failure, { retry: this.retry ?? undefined, tlsPort: this.known.about().tls_port }),
      trouble: (message) => this.timeline.note(message),
      raw: (direction, event) => log.add(direction, event),
    });
    this.bind();
    setInterval(() => this.tick(), 1000);
    this.render();
  }

  bind() {
    const { conversation } = this;
    button("start").onclick = () => this.start();
    button("stop").onclick = () => conversation.stop();
    button("mute").onclick = () => conversation.mute(!conversation.isMuted);
    button("pause").onclick = () =>
      conversation.state === "paused" ? conversation.resume() : conversation.pause();
    button("force-listen").onclick = () => {
      conversation.forceListen();
      this.timeline.note(t("note_forced"));
    };
    const file = find("recording", HTMLInputElement);
    file.onchange = async () => {
      const chosen = file.files?.[0];
      file.value = "";
      if (!chosen) return;
      try {
        this.ask({ samples: await readSound(chosen), name: chosen.name });
      } catch {
        failures.show({ name: "file" });
      }
    };
    for (const { name, text } of EXAMPLES) {
      const chip = make("button", "", text);
      chip.type = "button";
      chip.lang = "en";
      chip.dataset.example = name;
      chip.onclick = () => this.example(name, text);
      element("examples").append(chip);
    }
  }

  /** @param {string} name @param {string} text */
  async example(name, text) {
    try {
      const answer = await fetch(`/page/questions/${name}.wav`);
      if (!answer.ok) throw new Error(answer.statusText);
      this.ask({ samples: await readSound(await answer.blob()), text });
    } catch {
      failures.show({ name: "unreachable" }, { retry: () => this.example(name, text) });
    }
  }

  /** Plays a recording into the running conversation, or starts one with it. @param {Recording} recording */
  ask(recording) {
    const { state } = this.conversation;
    if (state === "listening" || state === "speaking") this.conversation.ask(recording);
    else if (!this.conversation.isRunning) this.start(recording);
  }

  /** @param {Recording} [recording] */
  start(recording) {
    failures.hide();
    this.retry = () => this.start(recording);
    this.usesRecording = Boolean(recording);
    this.recording = null;
    this.hasSpoken = false;
    this.isAnswered = true;
    this.figures.reset();
    const withCamera = find("with-camera", HTMLInputElement).checked;
    const limits = this.known.about().limits_s;
    this.limitS = withCamera ? limits.video : limits.audio;
    void this.conversation.start({
      key: this.known.key(),
      dialect: settings.dialect(),
      settings: settings.given(),
      deviceId: settings.microphone(),
      recording,
      camera: withCamera ? this.camera : undefined,
      startBufferS: settings.startBuffer(),
    });
  }

  begun() {
    this.timeline.restart();
    this.timeline.note(t("note_start"));
    this.beganAt = performance.now();
    element("trace").textContent = this.conversation.traceId ?? t("trace_none");
    void settings.listMicrophones();
  }

  /** Returns the known text of the user's turn: that of a recording. */
  label() {
    const { recording } = this;
    this.recording = null;
    if (recording?.text) return t("you_asked", { text: recording.text });
    return recording?.name ? t("you_file", { name: recording.name }) : "";
  }

  /** @param {number} level */
  level(level) {
    const now = performance.now();
    find("level-you", HTMLMeterElement).value = level;
    this.waves.step(level, this.modelLevel);
    const { state } = this.conversation;
    if (state === "listening" || state === "speaking") this.speech.level(level, now);
    if (this.speech.isOpen) this.isAnswered = false;
  }

  /** @param {import("./sound.js").Played} played */
  played({ isPlaying, underruns, level }) {
    this.modelLevel = isPlaying ? level : 0;
    find("level-model", HTMLMeterElement).value = this.modelLevel;
    this.figures.count("underruns", underruns);
    if (isPlaying && !this.wasPlaying && !this.isAnswered) {
      this.isAnswered = true;
      this.figures.duration("latency", performance.now() - this.speech.lastVoiced);
    }
    if (isPlaying) this.hasSpoken = true;
    this.wasPlaying = isPlaying;
  }

  /** @param {Blob} picture */
  saw(picture) {
    // Only pictures during speech are shown, as one each second would fill the time line.
    this.heard?.saw(picture);
  }

  /** @param {boolean} interrupted */
  turnOver(interrupted) {
    const { said } = this;
    this.said = null;
    if (interrupted) said?.interrupt();
    const isSilent = said && !interrupted && !this.hasSpoken && !this.wasPlaying;
    if (isSilent && settings.speaks()) setTimeout(() => this.hasSpoken || failures.show({ name: "no_voice" }), 1500);
  }

  /** @param {Parameters<import("./conversation.js").View["figures"]>[0]} figures */
  figured({ context, contextMax, unitMs, roundTripMs, droppedTotal, skipped }) {
    if (contextMax) this.contextMax = contextMax;
    if (context !== undefined) this.figures.context(context, this.contextMax);
    if (unitMs) this.figures.duration("unit", unitMs);
    if (roundTripMs !== undefined) this.figures.duration("round-trip", roundTripMs);
    this.figures.count("dropped", (droppedTotal ?? 0) + skipped);
  }

  tick() {
    const { state } = this.conversation;
    if (state === "queued") this.render();
    if (state !== "listening" && state !== "speaking" && state !== "paused") return;
    const gone = (performance.now() - this.beganAt) / 1000;
    this.figures.time(this.limitS ? this.limitS - gone : Infinity);
  }

  render() {
    const { conversation, usesRecording } = this;
    const { state, isRunning, isMuted } = conversation;
    element("stage").dataset.state = state;
    element("state").textContent = t(`state_${state}`);
    element("state-detail").textContent = this.detail(state);
    const isLive = state === "listening" || state === "speaking" || state === "paused";
    button("start").hidden = isRunning;
    button("start").textContent = t(state === "closed" ? "again" : "start");
    button("stop").hidden = !isRunning;
    for (const id of BUTTONS) button(id).hidden = !isLive;
    button("mute").textContent = t(isMuted ? "unmute" : "mute");
    button("mute").setAttribute("aria-pressed", String(isMuted));
    button("mute").hidden ||= usesRecording;
    button("pause").textContent = t(state === "paused" ? "resume" : "pause");
    button("pause").setAttribute("aria-pressed", String(state === "paused"));
    element("camera-switch").hidden = isRunning;
    element("preview").hidden = !(isRunning && find("with-camera", HTMLInputElement).checked);
    if (isRunning) return;
    this.speech.end();
    this.modelLevel = 0;
    for (const id of ["level-you", "level-model"]) find(id, HTMLMeterElement).value = 0;
  }

  /** @param {State} state */
  detail(state) {
    if (state === "listening" && this.conversation.isMuted) return t("listening_muted");
    if (state === "listening" && this.usesRecording) return t("listening_recording");
    if (state === "closed") return element("failure").hidden ? t("closed_by_you") : "";
    if (state !== "queued") return t(`${state}_detail`);
    const { position, length, waitS, isGuess, at } = this.place;
    const wait = clock(waitS - (performance.now() - at) / 1000);
    return t(isGuess ? "queued_guess" : "queued_detail", { position, length, wait });
  }
}
