// What is new, keys, and what is asked once more. The page works without any of it.
"use strict";

// ---- What is new: nothing that is there moves, or loses the focus.

const INERT_MS = 700; // in which a question that has just come can't be answered by a click meant for something else

// Rows that are there get their new texts; new ones come last; those that have ended stay until the page is left.
function renewRows(place, html) {
  const fresh = document.createElement("template");
  fresh.innerHTML = html;
  const rows = new Map([...fresh.content.querySelectorAll("[data-key]")].map((row) => [row.dataset.key, row]));
  place.querySelectorAll(":scope > [data-key]").forEach((old) => {
    const row = rows.get(old.dataset.key);
    rows.delete(old.dataset.key);
    if (!row) end(old);
    else old.querySelectorAll("[data-live]").forEach((part) => {
      const now = row.querySelector(`[data-live="${part.dataset.live}"]`);
      if (now && now.innerHTML !== part.innerHTML) part.replaceChildren(...now.childNodes);
    });
  });
  rows.forEach((row) => {
    if (row.matches(".question")) {
      row.classList.add("new");
      setTimeout(() => row.classList.remove("new"), INERT_MS);
    }
    const last = place.querySelector(":scope > .when-none");
    place.insertBefore(row, last);
    htmx.process(row);
  });
  if (place.closest(".dock") && !place.querySelector(".question:not(.ended)")) {
    setTimeout(() => { if (!place.querySelector(".question:not(.ended)")) place.replaceChildren(); }, 4000);
  }
}

function end(row) {
  if (row.classList.contains("ended")) return;
  row.classList.add("ended");
  const outcome = row.querySelector(".outcome");
  if (outcome && !outcome.textContent.trim()) outcome.textContent = "Answered elsewhere, or too late.";
  const use = row.querySelector('[data-live="use"]');
  if (use) use.textContent = "ended";
}

const TROUBLES = {
  lost: "Fumehood does not answer. This page goes on trying. If fumehood web was started anew, open the link that it printed.",
  refused: "This browser is not known any more: fumehood web was started anew. Open the link that it printed.",
};

function learn(name, data) {
  if (name === "connection") name = "trouble", data = TROUBLES[data] || "";
  document.querySelectorAll(`[data-rows="${name}"]`).forEach((place) => renewRows(place, data));
  document.querySelectorAll(`[data-news="${name}"]`).forEach((place) => {
    if (place.textContent !== data) place.textContent = data;
    if (place.id === "trouble") place.hidden = !data;
  });
  const count = document.querySelector('[data-news="count-questions"]').textContent;
  document.title = (count ? `(${count}) ` : "") + document.title.replace(/^\(\d+\) /, "");
}

if (window.SharedWorker) {
  const shared = new SharedWorker("/static/events.js");
  shared.port.addEventListener("message", (event) => learn(...event.data));
  shared.port.start();
  addEventListener("pagehide", () => shared.port.postMessage("gone"));
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
} else {
  const source = new EventSource("/events");
  ["questions", "running", "count-questions", "count-waiting", "trouble"].forEach((name) => {
    source.addEventListener(name, (event) => learn(name, event.data));
  });
  source.addEventListener("open", () => learn("connection", "open"));
  source.addEventListener("error", () => learn("connection", source.readyState === EventSource.CLOSED ? "refused" : "lost"));
}

// A running command's own page: what it prints is added, as long as somebody looks.
const PIECES = 50; // of output that are kept here; all of it can be saved when the command has ended
const followed = document.querySelector("[data-follow]");
if (followed) {
  let source = null;
  let after = "";
  const follow = () => {
    source?.close();
    source = null;
    if (document.hidden) return;
    source = new EventSource(`${followed.dataset.follow}?after=${after}`);
    ["stdout", "stderr"].forEach((name) => source.addEventListener(name, (event) => {
      const place = followed.querySelector(`[data-output="${name}"]`);
      const isAtEnd = place.scrollTop + place.clientHeight >= place.scrollHeight - 4;
      after = event.lastEventId;
      const piece = document.createElement("span");
      piece.innerHTML = event.data;
      place.append(piece);
      if (place.childElementCount > PIECES) place.firstElementChild.remove();
      if (isAtEnd) place.scrollTop = place.scrollHeight;
    }));
    ["written", "use"].forEach((name) => source.addEventListener(name, (event) => {
      document.querySelector(`[data-output="${name}"]`).innerHTML = event.data;
    }));
    source.addEventListener("ended", () => { source.close(); location.reload(); });
  };
  document.addEventListener("visibilitychange", follow);
  follow();
}

// ---- Keys.

const rows = () => [...document.querySelectorAll("[data-row]")].filter((row) => row.offsetParent);
const chosenRow = () => document.querySelector("[data-row].current");

function choose(row) {
  document.querySelectorAll("[data-row].current").forEach((each) => each.classList.remove("current"));
  row.classList.add("current");
  row.scrollIntoView({ block: "nearest" });
  row.querySelector("a, button, input:not([type=hidden]), summary")?.focus({ preventScroll: true });
}

function move(step) {
  const all = rows();
  if (!all.length) return;
  const at = all.indexOf(chosenRow());
  choose(all[Math.min(all.length - 1, Math.max(0, at + step))]);
}

// What a row means may stand beside it, in the entry of a list.
function press(selector) {
  const row = chosenRow();
  (row?.querySelector(selector) || row?.closest("li")?.querySelector(selector))?.click();
}

function answer(beginning) {
  const question = document.querySelector(".question:not(.ended):not(.new)");
  question?.querySelector(`[data-answer="${beginning}_once"]`)?.click();
}

const keys = {
  j: () => move(1),
  k: () => move(-1),
  o: () => press("[data-row-open] > summary"),
  a: () => press('[data-do="accept"]'),
  d: () => press('[data-do="refuse"]'),
  u: () => document.querySelector("[data-undo]")?.click(),
  y: () => answer("allow"),
  x: () => answer("deny"),
  "/": () => document.querySelector("[data-search]")?.focus(),
  "?": () => document.getElementById("keys").showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || document.querySelector("dialog[open]")) return;
  if (event.target.closest("input:not([type=checkbox]):not([type=range]), textarea, select")) return;
  const view = document.querySelector(`nav [data-key="${CSS.escape(event.key)}"]`);
  const act = keys[event.key];
  if (!act && !view) return;
  event.preventDefault();
  if (act) act(); else view.click();
});

// ---- Clicks.

document.addEventListener("click", (event) => {
  if (event.target.closest("[data-keys]")) keys["?"]();
});

// A button that concerns what is chosen does nothing where nothing is; what throws something away asks once more.
document.addEventListener("submit", (event) => {
  const button = event.submitter;
  if (!button) return;
  const needs = button.matches("[data-chosen]") ? '[name="path"]:checked' : button.matches("[data-pieces]") ? '[name="hunk"]:checked' : "";
  if (needs && !event.target.querySelector(needs)) {
    event.preventDefault();
    button.setCustomValidity("Choose something first.");
    button.reportValidity();
    setTimeout(() => button.setCustomValidity(""), 2000);
  } else if (button.dataset.confirm && !confirm(button.dataset.confirm)) {
    event.preventDefault();
  }
});

// ---- A file's versions: one at a time, as the slider says.

document.querySelectorAll("[data-slider]").forEach((slider) => {
  const all = [...document.querySelectorAll(`[data-version-of="${slider.dataset.slider}"]`)];
  const show = () => all.forEach((each, number) => {
    each.hidden = number !== all.length - 1 - Number(slider.value);
    if (!each.hidden) {
      slider.setAttribute("aria-valuetext", each.querySelector("p").textContent.trim());
      htmx.trigger(each.querySelector(".content"), "shown");
    }
  });
  slider.addEventListener("input", show);
  show();
});
