// Draws the graph of a bucket, opens and closes its modules, moves and zooms it, and says what a call is.
"use strict";

const data = JSON.parse(document.getElementById("graph").textContent);
const LABELS = ["op", "arguments", "results", "weights", "states", "line of the model", "made by", "stream"];
const calls = data.calls.map((call) => ({
  texts: [...call.slice(0, 7).map((number) => data.texts[number]), call[7] ? String(call[7]) : ""],
  reads: call[8],
}));
const svg = document.querySelector(".graph svg");
const canvas = svg.querySelector("g");
const told = document.querySelector(".graph output");
const list = document.querySelector(".graph dl");
const opened = new Set([data.model]);
const FEW = 40; // boxes that are open at the beginning
const MANY = 1500; // boxes that are drawn at most
const view = { x: 0, y: 0, scale: 1 };
let size = { w: 1, h: 1 };
let chosen = null;
const partOf = new WeakMap(); // what each box on the page stands for

connect(data.model, calls);

// ---- sizes and texts

function callsOf(module) {
  return module.parts.reduce((sum, part) => sum + (typeof part === "number" ? 1 : callsOf(part)), 0);
}

function linesFor(part) {
  if (typeof part === "number") return [calls[part].texts[0], part < data.inputs ? "input" : calls[part].texts[2]];
  const number = callsOf(part);
  const count = number === 1 ? "1 call" : `${number.toLocaleString("en")} calls`;
  return [part.name, part.alike ? `${part.alike} alike, ${count}` : count];
}

function short(text) {
  return text.length > 40 ? `${text.slice(0, 39)}…` : text;
}

function sizeOf(part) {
  const wide = Math.max(...linesFor(part).map((text) => 6.4 * short(text).length)) + 22;
  if (typeof part === "number" || !opened.has(part)) return { w: wide, h: 36, stays: part < data.inputs };
  part.least = wide + 20;
  const inner = layout(part, sizeOf);
  return { w: inner.w, h: inner.h, inner };
}

// ---- drawing

function element(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function draw() {
  const whole = layout(data.model, sizeOf);
  size = { w: whole.w, h: whole.h };
  const focused = partOf.get(document.activeElement);
  canvas.replaceChildren(...drawn(whole));
  mark();
  if (focused !== undefined) [...canvas.querySelectorAll("[role]")].find((box) => partOf.get(box) === focused)?.focus();
}

function drawn(inside) {
  const lines = [...inside.segments.map(line), ...inside.back.map(arc)].join("");
  return [element("path", { d: lines }), ...inside.boxes.map(box)];
}

function line([from, to]) {
  const [a, b] = [from.x + from.w / 2, to.x + to.w / 2];
  const middle = (from.foot + to.y) / 2;
  const points = [a, middle, b, middle, b, to.y].map(round).join(" ");
  return `M${round(a)} ${round(from.lane ? from.y : from.y + from.h)}V${round(from.foot)}C${points}`;
}

function arc([from, to]) {
  const [a, b] = [from.x + from.w, to.x + to.w];
  const far = Math.max(a, b) + 30;
  const points = [far, from.y, far, to.y, b, to.y + to.h / 2].map(round).join(" ");
  return `M${round(a)} ${round(from.y + from.h / 2)}C${points}`;
}

function round(value) {
  return Math.round(value * 10) / 10;
}

function kindOf(item) {
  if (typeof item.part !== "number") return item.inner ? "module open" : "module";
  if (item.part < data.inputs) return "input";
  return item.part === calls.length - 1 ? "output" : "call";
}

function box(item) {
  const [title, below] = linesFor(item.part);
  const isModule = typeof item.part !== "number";
  const at = `translate(${round(item.x)} ${round(item.y)})`;
  const made = element("g", { class: kindOf(item), transform: at, tabindex: 0, role: "button" });
  made.setAttribute("aria-label", `${title}, ${below}`);
  if (isModule) made.setAttribute("aria-expanded", String(Boolean(item.inner)));
  partOf.set(made, item.part);
  made.append(element("rect", { width: round(item.w), height: round(item.h), rx: 4 }));
  made.append(element("title", {}, `${title}\n${below}`));
  if (item.inner) {
    made.append(element("text", { x: 10, y: 16 }, `− ${short(title)}`), ...drawn(item.inner));
  } else {
    made.append(element("text", { x: 10, y: 15 }, isModule ? `+ ${short(title)}` : short(title)));
    made.append(element("text", { x: 10, y: 29, class: "small" }, short(below)));
  }
  return made;
}

// ---- opening and choosing

function openUpTo(most) {
  let count = data.model.parts.length;
  for (const module of opened) {
    if (module !== data.model) count += module.parts.length;
  }
  for (const module of opened) { // a set goes on with what is added meanwhile
    for (const part of module.parts) {
      if (typeof part === "number" || opened.has(part)) continue;
      if (count + part.parts.length > most) return false;
      opened.add(part);
      count += part.parts.length;
    }
  }
  return true;
}

function choose(part) {
  chosen = part;
  if (typeof part !== "number") {
    if (opened.has(part)) opened.delete(part);
    else opened.add(part);
    draw();
  }
  describe(part);
  mark();
}

function describe(part) {
  const rows = typeof part === "number"
    ? LABELS.map((label, number) => [label, calls[part].texts[number]])
    : [["module", part.path || part.name], ["alike", part.alike ? `${part.name}: ${part.alike} layers` : ""], ["calls", callsOf(part).toLocaleString("en")]];
  list.replaceChildren();
  for (const [label, text] of rows.filter(([, text]) => text)) {
    const [term, said] = [document.createElement("dt"), document.createElement("dd")];
    term.textContent = label;
    said.textContent = text;
    list.append(term, said);
  }
}

function mark() {
  for (const made of canvas.querySelectorAll("[role]")) made.classList.toggle("shown", partOf.get(made) === chosen);
}

// ---- moving and zooming

function show() {
  canvas.setAttribute("transform", `translate(${round(view.x)} ${round(view.y)}) scale(${view.scale})`);
}

// The whole, or as much from the top on as can be read.
function fit(least = 0) {
  const { width, height } = svg.getBoundingClientRect();
  view.scale = Math.max(least, Math.min(width / size.w, height / size.h, 1.5));
  view.x = (width - size.w * view.scale) / 2;
  view.y = Math.max(0, (height - size.h * view.scale) / 2);
  show();
}

function zoom(factor, x = svg.clientWidth / 2, y = svg.clientHeight / 2) {
  const scale = Math.min(8, Math.max(0.01, view.scale * factor));
  view.x = x - (x - view.x) * scale / view.scale;
  view.y = y - (y - view.y) * scale / view.scale;
  view.scale = scale;
  show();
}

function move(x, y) {
  view.x += x;
  view.y += y;
  show();
}

// A box that has the focus, and whose beginning cannot be seen, comes to the middle.
function reveal(box) {
  const [place, area] = [box.getBoundingClientRect(), svg.getBoundingClientRect()];
  const isSeen = place.left >= area.left && place.top >= area.top
    && place.left < area.right - 40 && place.top < area.bottom - 20;
  const across = (area.width - Math.min(place.width, area.width)) / 2;
  if (!isSeen) move(area.left + across - place.left, area.top + area.height / 2 - place.top);
}

const WAYS = {
  in: () => zoom(1.3),
  out: () => zoom(1 / 1.3),
  all: () => fit(),
  open: () => {
    const isAll = openUpTo(MANY);
    told.textContent = isAll ? "All modules are open." : `Open as far as makes ${MANY.toLocaleString("en")} boxes.`;
    draw();
    fit(0.8);
  },
  close: () => {
    opened.clear();
    opened.add(data.model);
    told.textContent = "All modules are closed.";
    draw();
    fit();
  },
};
const KEYS = {
  "+": WAYS.in, "=": WAYS.in, "-": WAYS.out, 0: WAYS.all,
  ArrowLeft: () => move(60, 0), ArrowRight: () => move(-60, 0), ArrowUp: () => move(0, 60), ArrowDown: () => move(0, -60),
};

for (const button of document.querySelectorAll("[data-way]")) button.addEventListener("click", WAYS[button.dataset.way]);

svg.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const part = partOf.get(document.activeElement);
  if ((event.key === "Enter" || event.key === " ") && part !== undefined) choose(part);
  else if (KEYS[event.key]) KEYS[event.key]();
  else return;
  event.preventDefault();
});

svg.addEventListener("wheel", (event) => {
  if (!event.ctrlKey && !svg.contains(document.activeElement)) return;
  event.preventDefault();
  const area = svg.getBoundingClientRect();
  zoom(Math.exp(-event.deltaY / 400), event.clientX - area.left, event.clientY - area.top);
}, { passive: false });

let grip = null;
svg.addEventListener("pointerdown", (event) => { grip = { x: event.clientX, y: event.clientY, far: 0 }; });
window.addEventListener("pointermove", (event) => {
  if (!grip) return;
  move(event.clientX - grip.x, event.clientY - grip.y);
  grip = { x: event.clientX, y: event.clientY, far: grip.far + Math.abs(event.movementX) + Math.abs(event.movementY) };
});
window.addEventListener("pointerup", (event) => {
  const made = grip && grip.far < 5 && svg.contains(event.target) ? event.target.closest("[role=button]") : null;
  grip = null;
  if (made) choose(partOf.get(made));
});
svg.addEventListener("focusin", (event) => {
  if (!partOf.has(event.target)) return;
  describe(partOf.get(event.target));
  if (event.target.matches(":focus-visible")) reveal(event.target);
});

openUpTo(FEW);
draw();
fit(0.8);
