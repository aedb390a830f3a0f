/**
 * Everything that is heard and played: one audio context, in which a microphone or a recording goes into the capture
 * worklet, and the model's samples come out of the playback worklet.
 */

import { INPUT_RATE_HZ } from "./client/antiphon.js";

/**
 * @typedef {{isPlaying: boolean, underruns: number, lost: number, hasEnded: boolean, level: number, heldS: number}} Played
 *
 * @typedef {Object} Listener
 * @property {(samples: Float32Array) => void} [unit] 16,000 samples at 16 kHz
 * @property {(samples: Float32Array) => void} [rest] what was begun of a unit, once it stops
 * @property {(level: number) => void} [level] the peak of the last 50 ms, 0 to 1
 * @property {(played: Played) => void} [played]
 * @property {() => void} [lost] the microphone is gone
 */

const MICROPHONE = { echoCancellation: true, noiseSuppression: true, autoGainControl: true, channelCount: 1 };

/** How loud whoever plays a recording hears it, too. */
const MONITOR = 0.6;

export class Sound {
  /** @param {Listener} on */
  constructor(on) {
    this.on = on;
    this.context = new AudioContext({ latencyHint: "interactive" });
    this.gate = this.context.createGain();
    /** @type {MediaStream | null} */
    this.stream = null;
    /** @type {MediaStreamAudioSourceNode | null} */
    this.microphone = null;
    /** @type {AudioBufferSourceNode | null} */
    this.recording = null;
    /** @type {AudioWorkletNode | null} */
    this.capture = null;
    /** @type {AudioWorkletNode | null} */
    this.playback = null;
  }

  /** To be called from a click: browsers start sound for nothing else. */
  async open() {
    const { context } = this;
    await context.resume();
    await Promise.all(["capture", "playback"].map((name) => context.audioWorklet.addModule(`/page/${name}.worklet.js`)));
    const mono = { numberOfInputs: 1, numberOfOutputs: 1, outputChannelCount: [1] };
    this.capture = new AudioWorkletNode(context, "capture", {
      ...mono,
      channelCount: 1,
      channelCountMode: "explicit",
    });
    this.capture.port.onmessage = ({ data: { unit, rest, level, began } }) => {
      if (unit) this.on.unit?.(unit);
      else if (rest) this.on.rest?.(rest);
      else if (began) this.recording?.start();
      else this.on.level?.(level);
    };
    this.playback = new AudioWorkletNode(context, "playback", { ...mono, numberOfInputs: 0 });
    this.playback.port.onmessage = ({ data }) => this.on.played?.(data);
    // The capture's own output is silence; without a way out it would not be run.
    this.gate.connect(this.capture).connect(context.destination);
    this.playback.connect(context.destination);
  }

  /** @param {string} [deviceId] Raises `DOMException` as `getUserMedia` does. */
  async useMicrophone(deviceId) {
    this.closeMicrophone();
    const audio = { ...MICROPHONE, ...(deviceId ? { deviceId: { exact: deviceId } } : {}) };
    const stream = await navigator.mediaDevices.getUserMedia({ audio });
    if (this.context.state === "closed") {
      for (const track of stream.getTracks()) track.stop();
      return;
    }
    this.stream = stream;
    stream.getAudioTracks()[0].onended = () => this.on.lost?.();
    this.microphone = this.context.createMediaStreamSource(stream);
    this.microphone.connect(this.gate);
  }

  /** Lets a recording be heard in place of the microphone, from the next unit on. @param {Float32Array<ArrayBuffer>} samples at 16 kHz */
  play(samples) {
    this.stopRecording();
    const buffer = this.context.createBuffer(1, samples.length, INPUT_RATE_HZ);
    buffer.copyToChannel(samples, 0);
    const monitor = this.context.createGain();
    monitor.gain.value = MONITOR;
    this.recording = this.context.createBufferSource();
    this.recording.buffer = buffer;
    this.recording.connect(monitor).connect(this.context.destination);
    this.capture?.port.postMessage({ recording: samples });
  }

  stopRecording() {
    this.recording?.disconnect();
    this.recording = null;
  }

  /** Begins to cut units, from a whole one on; or stops. @param {boolean} running */
  run(running) {
    this.capture?.port.postMessage({ running });
  }

  /** @param {boolean} muted */
  mute(muted) {
    this.gate.gain.value = muted ? 0 : 1;
  }

  /** @param {Float32Array<ArrayBuffer>} samples at 24 kHz */
  say(samples) {
    this.playback?.port.postMessage({ samples }, [samples.buffer]);
  }

  /** The turn is over: what is held is played out. */
  endTurn() {
    this.playback?.port.postMessage({ ended: true });
  }

  /** The turn was interrupted: what is held is thrown away. */
  flush() {
    this.playback?.port.postMessage({ flush: true });
  }

  /** @param {number} seconds */
  setStartBuffer(seconds) {
    this.playback?.port.postMessage({ startS: seconds });
  }

  closeMicrophone() {
    for (const track of this.stream?.getTracks() ?? []) {
      track.onended = null;
      track.stop();
    }
    this.microphone?.disconnect();
    this.stream = null;
    this.microphone = null;
  }

  /** Lets go of every device. */
  async close() {
    this.closeMicrophone();
    this.stopRecording();
    if (this.context.state !== "closed") await this.context.close();
  }
}

/** The microphones there are, with names once one was allowed. @returns {Promise<MediaDeviceInfo[]>} */
export async function microphones() {
  const devices = (await navigator.mediaDevices?.enumerateDevices()) ?? [];
  return devices.filter((device) => device.kind === "audioinput" && device.deviceId);
}
