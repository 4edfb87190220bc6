// The search of the site runs in a web worker, which browsers refuse to pages that were opened as files
// (file://). There, this script runs the same worker code in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = "<body></body>";
      this.ready = new Promise((resolve, reject) => {
        this.frame.onload = () => {
          const inside = this.frame.contentWindow;
          const load = (source) => new Promise((loaded, failed) => {
            const script = inside.document.createElement("script");
            script.src = source;
            script.onload = loaded;
            script.onerror = failed;
            inside.document.body.appendChild(script);
          });
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          inside.importScripts = (...sources) => Promise.all(sources.map(load));
          load(url).then(() => resolve(inside), reject);
        };
      });
      document.body.appendChild(this.frame);
    }

    postMessage(data) {
      this.ready.then((inside) => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
