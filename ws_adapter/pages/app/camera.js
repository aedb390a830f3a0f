/** The camera: a preview, and one picture for each unit. */

/** Longest side of a picture in pixels; models here use no larger ones. */
const SIDE = 448;
const QUALITY = 0.8;

export class Camera {
  /** @param {HTMLVideoElement} preview */
  constructor(preview) {
    this.preview = preview;
    this.canvas = document.createElement("canvas");
    /** @type {MediaStream | null} */
    this.stream = null;
  }

  /** Opens the camera. Throws `DOMException` as `getUserMedia` does. */
  async open() {
    this.stream = await navigator.mediaDevices.getUserMedia({ video: { width: 640, height: 480 } });
    this.preview.srcObject = this.stream;
    await this.preview.play();
  }

  /** Takes a picture as JPEG; null before the camera has one. @returns {Promise<Blob | null>} */
  async picture() {
    const { videoWidth: width, videoHeight: height } = this.preview;
    if (!this.stream || !width) return null;
    const scale = Math.min(1, SIDE / Math.max(width, height));
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    const pen = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    pen.drawImage(this.preview, 0, 0, this.canvas.width, this.canvas.height);
    return new Promise((resolve) => this.canvas.toBlob(resolve, "image/jpeg", QUALITY));
  }

  close() {
    for (const track of this.stream?.getTracks() ?? []) track.stop();
    this.stream = null;
    this.preview.srcObject = null;
  }
}
