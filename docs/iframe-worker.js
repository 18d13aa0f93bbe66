// Browsers start no worker for pages from disk: there the search runs in a hidden frame.
// The idea is that of the package iframe-worker, by Martin Donath.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = frame.contentWindow
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const loaded = new Promise(resolve => frame.addEventListener("load", resolve))
      this.postMessage = data =>
        loaded.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })))
      inside.document.open()
      inside.document.write(`<script src="${url}"></script>`)
      inside.document.close()
    }
  }
}
