/**
 * Audio input and output in one audio context: the capture worklet gets a microphone or a recording, and the playback
 * worklet plays the model's samples.
 */

import { INPUT_RATE_HZ } from "./client/antiphon.js";

/**
 * @typedef {{isPlaying: boolean, underruns: number, lost: number, hasEnded: boolean, level: number, heldS: number}} Played
 *
 * @typedef {Object} Listener
 * @property {(samples: Float32Array) => void} [unit] 16,000 samples at 16 kHz
 * @property {(samples: Float32Array) => void} [rest] the incomplete last unit, after `run(false)`
 * @property {(level: number) => void} [level] the peak of the last 50 ms, 0 to 1
 * @property {(played: Played) => void} [played]
 * @property {() => void} [lost] the microphone was disconnected
 */

const MICROPHONE = { echoCancellation: true, noiseSuppression: true, autoGainControl: true, channelCount: 1 };

/** The volume at which the user hears a recording that is played to the model. */
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

  /** Starts the sound. Call it from a click: browsers require one. */
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
    // The capture worklet outputs silence, but runs only if it is connected to the destination.
    this.gate.connect(this.capture).connect(context.destination);
    this.playback.connect(context.destination);
  }

  /** Opens a microphone. Throws `DOMException` as `getUserMedia` does. @param {string} [deviceId] */
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

  /** Plays a recording to the model in place of the microphone, from the next unit on. @param {Float32Array<ArrayBuffer>} samples at 16 kHz */
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

  /** Starts to cut units, or stops. @param {boolean} running */
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

  /** Ends the turn: the buffer is played to its end. */
  endTurn() {
    this.playback?.port.postMessage({ ended: true });
  }

  /** Discards the buffer after an interruption. */
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

  /** Closes every device. */
  async close() {
    this.closeMicrophone();
    this.stopRecording();
    if (this.context.state !== "closed") await this.context.close();
  }
}

/** Returns the microphones; they have names once the user has allowed one. @returns {Promise<MediaDeviceInfo[]>} */
export async function microphones() {
  const devices = (await navigator.mediaDevices?.enumerateDevices()) ?? [];
  return devices.filter((device) => device.kind === "audioinput" && device.deviceId);
}
