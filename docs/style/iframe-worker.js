// The search runs in a worker, which browsers start for no page on a disk. A hidden frame is one.
class IFrameWorker extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.append(frame);
    const inside = (this.inside = frame.contentWindow);
    inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    const script = inside.document.createElement("script");
    this.started = new Promise((resolve) => (script.onload = resolve));
    script.src = url;
    inside.document.body.append(script);
  }

  postMessage(data) {
    this.started.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
  }
}

if (location.protocol === "file:") window.Worker = IFrameWorker;
