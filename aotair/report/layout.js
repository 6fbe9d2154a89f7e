// Where do the boxes and lines of a module go? Rows from top to bottom, and modules within modules.
"use strict";

const ROOM = { row: 26, box: 16, inside: 12, title: 24, lane: 8 };
const IN = "in";
const OUT = "out";

// Gives each module its outer one, its depth, and its lines: from part to part, from above into it, and out of it.
function connect(model, calls) {
  const holders = new Array(calls.length);
  place(model, null, 0, holders);
  calls.forEach((call, to) => call.reads.forEach((from) => join(from, to, holders)));
}

function place(module, outer, depth, holders) {
  Object.assign(module, { outer, depth, lines: new Map() });
  for (const part of module.parts) {
    if (typeof part === "number") holders[part] = module;
    else place(part, module, depth + 1, holders);
  }
}

function join(from, to, holders) {
  let [a, ofA, b, ofB] = [from, holders[from], to, holders[to]];
  while (ofA !== ofB) {
    if (ofA.depth >= ofB.depth) {
      add(ofA.lines, a, OUT);
      [a, ofA] = [ofA, ofA.outer];
    } else {
      add(ofB.lines, IN, b);
      [b, ofB] = [ofB, ofB.outer];
    }
  }
  if (a !== b) add(ofA.lines, a, b);
}

function add(lines, from, to) {
  if (!lines.has(from)) lines.set(from, new Set());
  lines.get(from).add(to);
}

// The parts of an open module with their places in it, its lines as points, and its size. `sizeOf` gives a part's.
function layout(module, sizeOf) {
  const items = new Map(module.parts.map((part, order) => [part, { part, order, above: [], below: [], ...sizeOf(part) }]));
  const ranks = rank(module, items);
  const top = { rank: -1, order: 0, w: 0, h: 0, above: [], below: [] };
  const bottom = { rank: ranks, order: 0, w: 0, h: 0, above: [], below: [] };
  items.set(IN, top).set(OUT, bottom);
  const rows = Array.from({ length: ranks }, () => []);
  for (const part of module.parts) rows[items.get(part).rank].push(items.get(part));
  const { segments, back } = route(module, items, rows);
  sort(rows);
  return { ...position(rows, top, bottom, module), segments, back, boxes: module.parts.map((part) => items.get(part)) };
}

// Each part below all that it reads, and next to its first reader where it reads nothing; how many rows that makes.
function rank(module, items) {
  const later = (part) => [...(module.lines.get(part) ?? [])].map((to) => items.get(to))
    .filter((item) => item && item.order > items.get(part).order);
  const fed = new Set(module.parts.flatMap((part) => later(part)));
  for (const part of module.parts) items.get(part).rank = 0;
  for (const part of module.parts) {
    for (const item of later(part)) item.rank = Math.max(item.rank, items.get(part).rank + 1);
  }
  for (const part of [...module.parts].reverse()) {
    const [item, readers] = [items.get(part), later(part)];
    if (!fed.has(item) && !item.stays && readers.length) item.rank = Math.min(...readers.map((one) => one.rank)) - 1;
  }
  return 1 + Math.max(...module.parts.map((part) => items.get(part).rank));
}

// Lines from row to row: what passes a row has a lane in it, one for all that comes from the same place, and one for
// all that goes out of the module.
function route(module, items, rows) {
  const [segments, back, out] = [[], [], []];
  for (const [from, all] of module.lines) {
    const [start, own] = [items.get(from), []];
    for (const to of all) {
      const [end, lanes] = [items.get(to), to === OUT ? out : own];
      if (end.rank <= start.rank) {
        back.push([start, end]);
        continue;
      }
      let last = start;
      for (let row = start.rank + 1; row < end.rank; row++) {
        if (!lanes[row]) {
          lanes[row] = { lane: true, rank: row, order: start.order, w: ROOM.lane, h: 0, above: [], below: [] };
          rows[row].push(lanes[row]);
        }
        link(last, lanes[row], segments);
        last = lanes[row];
      }
      link(last, end, segments);
    }
  }
  return { segments, back };
}

function link(from, to, segments) {
  if (from.below.includes(to)) return;
  from.below.push(to);
  to.above.push(from);
  segments.push([from, to]);
}

// Rows in an order in which few lines cross.
function sort(rows) {
  rows.forEach((row) => row.sort((a, b) => a.order - b.order));
  const number = (row) => row.forEach((item, place) => { item.place = (place + 0.5) / row.length; });
  rows.forEach(number);
  for (let sweep = 0; sweep < 8; sweep++) {
    const [side, order] = sweep % 2 ? ["below", [...rows].reverse()] : ["above", rows];
    for (const row of order) {
      row.forEach((item) => { item.wish = mean(item[side].map((other) => other.place ?? 0.5), item.place); });
      row.sort((a, b) => a.wish - b.wish);
      number(row);
    }
  }
}

function mean(values, otherwise) {
  return values.length ? values.reduce((a, b) => a + b, 0) / values.length : otherwise;
}

// Gives every item its place; the size of the whole.
function position(rows, top, bottom, module) {
  const title = module.outer ? ROOM.title : 0;
  let y = title + ROOM.row;
  for (const row of rows) {
    const height = Math.max(...row.map((item) => item.h), 0);
    let x = 0;
    for (const item of row) {
      item.x = x;
      x += item.w + ROOM.box;
      item.y = y;
      if (item.lane) item.h = height;
      item.foot = y + height;
    }
    y += height + ROOM.row;
  }
  for (let turn = 0; turn < 12; turn++) straighten(rows, turn % 2 ? "below" : "above");
  const left = Math.min(...rows.flat().map((item) => item.x));
  for (const item of rows.flat()) item.x += ROOM.inside - left;
  const right = Math.max(...rows.flat().map((item) => item.x + item.w));
  const w = Math.max(right + ROOM.inside, module.least ?? 0);
  Object.assign(top, { x: w / 2, y: 0, foot: title });
  Object.assign(bottom, { x: w / 2, y, foot: y });
  return { w, h: y };
}

// Moves the items of each row towards those that they are joined with, as far as the row's order lets them.
function straighten(rows, side) {
  for (const row of side === "above" ? rows : [...rows].reverse()) {
    const wishes = row.map((item) => {
      const others = item[side].filter((other) => other.x !== undefined);
      const same = others.filter((other) => Boolean(other.lane) === Boolean(item.lane)); // lanes run straight, chains too
      const centres = (same.length ? same : others).map((other) => other.x + other.w / 2);
      return mean(centres, item.x + item.w / 2) - item.w / 2;
    });
    const [from, to] = [[...wishes], [...wishes]];
    for (let i = 1; i < row.length; i++) from[i] = Math.max(from[i], from[i - 1] + row[i - 1].w + ROOM.box);
    for (let i = row.length - 2; i >= 0; i--) to[i] = Math.min(to[i], to[i + 1] - row[i].w - ROOM.box);
    row.forEach((item, i) => { item.x = (from[i] + to[i]) / 2; });
  }
}
