/** A WebSocket with JSON messages and an observer of all of them. */

import { subprotocols } from "./endpoint.js";

/**
 * @typedef {Object} Watch
 * @property {(direction: "up" | "down", event: any) => void} [onRaw] called with each event as sent or received
 */

export class JsonSocket {
  /**
   * @param {URL} url
   * @param {string | undefined} key
   * @param {Watch} watch
   * @param {{open?: () => void, event: (event: any) => void, close: (code: number, opened: boolean) => void}} on
   *   `close` is called once. `opened` is false if the socket never opened; a page cannot read why.
   */
  constructor(url, key, watch, on) {
    this.watch = watch;
    this.isOver = false;
    let opened = false;
    this.socket = new WebSocket(url, subprotocols(key));
    this.socket.onopen = () => {
      opened = true;
      on.open?.();
    };
    this.socket.onmessage = ({ data }) => {
      const event = JSON.parse(data);
      watch.onRaw?.("down", event);
      if (!this.isOver) on.event(event);
    };
    this.socket.onclose = ({ code }) => {
      if (this.isOver) return;
      this.isOver = true;
      on.close(code, opened);
    };
  }

  /** @param {object} event */
  send(event) {
    if (this.socket.readyState !== WebSocket.OPEN) return;
    this.watch.onRaw?.("up", event);
    this.socket.send(JSON.stringify(event));
  }

  /** Bytes that the browser has not sent to the network yet. */
  get backlog() {
    return this.socket.bufferedAmount;
  }

  /** Closes the socket without further callbacks. */
  drop() {
    this.isOver = true;
    this.socket.close();
  }
}
