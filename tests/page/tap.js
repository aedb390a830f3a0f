// Runs before the page: keeps what is played, and every track that was opened.
(() => {
  const tracks = [];
  const parts = [];
  let rate = 0;
  const devices = navigator.mediaDevices;
  if (devices) {
    const open = devices.getUserMedia.bind(devices);
    devices.getUserMedia = async (wanted) => {
      const stream = await open(wanted);
      tracks.push(...stream.getTracks());
      return stream;
    };
  }
  const connect = AudioNode.prototype.connect;
  AudioNode.prototype.connect = function (...to) {
    if (to[0] === this.context.destination && this.numberOfInputs === 0) {
      const tap = new MediaStreamAudioDestinationNode(this.context);
      connect.call(this, tap);
      void keep(tap.stream.getAudioTracks()[0]);
    }
    return connect.apply(this, to);
  };
  async function keep(track) {
    const reader = new MediaStreamTrackProcessor({ track }).readable.getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const samples = new Float32Array(value.numberOfFrames);
      value.copyTo(samples, { planeIndex: 0, format: "f32-planar" });
      rate = value.sampleRate;
      parts.push(samples);
      value.close();
    }
  }
  window.tap = {
    named: () => tracks.filter((track) => track.readyState === "live").map((track) => track.label),
    live: () => tracks.filter((track) => track.readyState === "live").length,
    played: () => [rate, parts.flatMap((part) => [...part])],
  };
})();
