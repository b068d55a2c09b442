// One connection for all tabs: a browser opens only six to one place, and each tab would keep one.
"use strict";

const names = ["questions", "running", "count-questions", "count-waiting", "trouble"];
const ports = new Set();
const latest = {};
let source;

function tell(name, data) {
  latest[name] = data;
  ports.forEach((port) => port.postMessage([name, data]));
}

function connect() {
  source = new EventSource("/events");
  names.forEach((name) => source.addEventListener(name, (event) => tell(name, event.data)));
  source.addEventListener("open", () => tell("connection", "open"));
  source.addEventListener("error", () => tell("connection", source.readyState === EventSource.CLOSED ? "refused" : "lost"));
}

connect();
self.addEventListener("connect", (event) => {
  const port = event.ports[0];
  ports.add(port);
  if (source.readyState === EventSource.CLOSED) connect(); // a new page may be known where an old one was not
  else Object.entries(latest).forEach((each) => port.postMessage(each));
  port.addEventListener("message", () => ports.delete(port));
  port.start();
});
