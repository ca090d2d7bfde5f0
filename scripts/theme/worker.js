// Browsers start no worker from a file, and search is one: there its script runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => setTimeout(() => this.onmessage?.({ data }));
      this.ready = new Promise((resolve) => {
        const script = inside.document.createElement("script");
        script.src = new URL(url, location).href;
        script.onload = resolve;
        script.onerror = () => this.onerror?.(new ErrorEvent("error", { message: `${url} cannot be read` }));
        inside.document.body.append(script);
      });
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow?.onmessage?.({ data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
