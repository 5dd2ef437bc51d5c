"use strict";
// Draws the charts of a page from the data that stand in it; needs nothing else. Colours by Okabe and Ito.
const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00"];
const DASHES = ["", "7 4", "8 3 2 3", "2 3"];
const MARKERS = ["circle", "square", "up", "diamond", "down"];
const specs = JSON.parse(document.getElementById("charts").textContent);
const hidden = {};  // by group: numbers of series that are switched off

const colourOf = (style) => (style < 0 ? "#8a8e96" : COLOURS[style % COLOURS.length]);

function make(parent, name, attributes = {}, text = null) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  parent.appendChild(node);
  return node;
}

function marker(parent, style, x, y, size) {
  const kind = MARKERS[Math.max(0, style) % MARKERS.length];
  const fill = colourOf(style);
  if (kind === "circle") return make(parent, "circle", { cx: x, cy: y, r: size, fill });
  const s = size * 1.15;
  const corners = {
    square: [[-s, -s], [s, -s], [s, s], [-s, s]],
    up: [[0, -s * 1.2], [s * 1.1, s], [-s * 1.1, s]],
    diamond: [[0, -s * 1.35], [s * 1.35, 0], [0, s * 1.35], [-s * 1.35, 0]],
    down: [[0, s * 1.2], [s * 1.1, -s], [-s * 1.1, -s]],
  }[kind];
  return make(parent, "polygon", { points: corners.map(([a, b]) => `${x + a},${y + b}`).join(" "), fill });
}

function ticks(low, high, count, whole) {
  const rough = (high - low) / Math.max(1, count);
  const power = Math.pow(10, Math.floor(Math.log10(rough)));
  let step = [1, 2, 2.5, 5, 10].map((k) => k * power).find((k) => k >= rough * 0.999);
  if (whole) step = Math.max(1, Math.ceil(step));
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
  return found;
}

function bytes(value) {
  for (const [size, unit] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]])
    if (Math.abs(value) >= size) return `${plain(value / size)} ${unit}`;
  return `${plain(value)} B`;
}

const plain = (value) => String(Number(value.toPrecision(5)));
const shown = (value, unit) => (unit === "bytes" ? bytes(value) : plain(value));

const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);  // a spread would overflow the stack
const most = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);

function range(values, pad) {
  let low = least(values), high = most(values);
  if (low === high) { low -= Math.abs(low) * 0.05 || 0.5; high += Math.abs(high) * 0.05 || 0.5; }
  const more = (high - low) * pad;
  return [low - more, high + more];
}

function tooltip(figure, lines, x, y) {
  let tip = figure.querySelector(".tip");
  if (!lines) { if (tip) tip.remove(); return; }
  if (!tip) { tip = document.createElement("div"); tip.className = "tip"; figure.appendChild(tip); }
  tip.replaceChildren(...lines.map((line, i) => {
    const node = document.createElement(i ? "div" : "b");
    node.textContent = line;
    return node;
  }));
  const left = x + 14 + tip.offsetWidth > figure.clientWidth ? x - 14 - tip.offsetWidth : x + 14;
  tip.style.left = `${Math.max(0, left)}px`;
  tip.style.top = `${Math.max(0, y - tip.offsetHeight / 2)}px`;
}

function shorten(node, width) {  // a name that is too long ends in dots
  const whole = node.textContent;
  let kept = whole;
  while (kept.length > 1 && node.getComputedTextLength() > width) {
    kept = kept.slice(0, Math.floor(kept.length * 0.95) - 1);
    node.textContent = kept + "…";
  }
  if (kept !== whole) make(node, "title", {}, whole);
}

function axisBelow(svg, frame, low, high, label, unit, whole) {
  const scale = (value) => frame.left + (value - low) / (high - low) * (frame.right - frame.left);
  const room = unit === "bytes" ? 75 : 55;
  for (const tick of ticks(low, high, Math.max(2, Math.floor((frame.right - frame.left) / room)), whole)) {
    make(svg, "line", { x1: scale(tick), x2: scale(tick), y1: frame.top, y2: frame.bottom, class: "grid" });
    make(svg, "text", { x: scale(tick), y: frame.bottom + 16, "text-anchor": "middle" }, shown(tick, unit));
  }
  make(svg, "line", { x1: frame.left, x2: frame.right, y1: frame.bottom, y2: frame.bottom, class: "axis" });
  const middle = (frame.left + frame.right) / 2;
  const text = make(svg, "text", { x: middle, y: frame.bottom + 35, "text-anchor": "middle" }, label);
  shorten(text, frame.right + frame.left);
  return scale;
}

function drawLines(figure, svg, spec, width) {
  const off = hidden[spec.group] || new Set();
  const series = spec.series.filter((one) => !off.has(one.style) && one.x.length);
  const height = 270;
  svg.setAttribute("height", height);
  if (!series.length) return;
  const values = series.flatMap((one) => [...one.y, ...(one.low || []), ...(one.high || [])]);
  let [low, high] = range(values.filter((value) => value !== null), 0.04);
  if (spec.floor !== undefined) low = Math.min(spec.floor, ...values);
  const xs = series.flatMap((one) => one.x);
  let [left, right] = [least(xs), most(xs)];
  if (spec.unit === "bytes") left = 0;
  if (left === right) { left -= 0.5; right += 0.5; }
  const marks = ticks(low, high, 5, false);
  const margin = 12 + 7 * Math.max(...marks.map((mark) => shown(mark, spec.yunit).length));
  const frame = { left: margin, right: width - 14, top: 26, bottom: height - 44 };
  const label = make(svg, "text", { x: 0, y: 13 }, spec.y);
  shorten(label, width);
  const x = axisBelow(svg, frame, left, right, spec.x, spec.unit, spec.unit !== "bytes");
  const y = (value) => frame.bottom - (value - low) / (high - low) * (frame.bottom - frame.top);
  for (const mark of marks) {
    make(svg, "line", { x1: frame.left, x2: frame.right, y1: y(mark), y2: y(mark), class: "grid" });
    make(svg, "text", { x: frame.left - 7, y: y(mark) + 4, "text-anchor": "end" }, shown(mark, spec.yunit));
  }
  for (const one of series) drawOne(svg, one, x, y, frame);
  const guide = make(svg, "g");
  const leave = () => { guide.replaceChildren(); tooltip(figure, null); };
  const move = (event) => {
    const at = svg.getBoundingClientRect();
    const hit = nearest(series, x, y, event.clientX - at.left, event.clientY - at.top);
    guide.replaceChildren();
    if (!hit) return;
    make(guide, "line", { x1: x(hit.x), x2: x(hit.x), y1: frame.top, y2: frame.bottom, class: "axis" });
    make(guide, "circle", { cx: x(hit.x), cy: y(hit.y), r: 5, fill: "none", stroke: "#000" });
    tooltip(figure, tipLines(spec, series, hit), x(hit.x), y(hit.y) + below(figure));
  };
  svg.onpointermove = move;
  svg.onpointerdown = move;
  svg.onpointerleave = leave;
}

function drawOne(svg, one, x, y, frame) {
  const points = one.x.map((value, i) => [x(value), y(one.y[i])]);
  if (one.level) {  // sends nothing: a level over the whole width
    points.splice(0, points.length, [frame.left, y(one.y[0])], [frame.right, y(one.y[0])]);
  }
  if (one.low) {
    const up = one.x.map((value, i) => `${x(value)},${y(one.high[i])}`);
    const down = one.x.map((value, i) => `${x(value)},${y(one.low[i])}`).reverse();
    make(svg, "polygon", { points: [...up, ...down].join(" "), fill: colourOf(one.style), opacity: 0.16 });
  }
  make(svg, "polyline", {
    points: points.map((point) => point.join(",")).join(" "), fill: "none", stroke: colourOf(one.style),
    "stroke-width": one.thin ? 1 : 2, "stroke-dasharray": one.style < 0 ? "" : DASHES[one.style % DASHES.length],
    opacity: one.thin ? 0.45 : 1,
  });
  if (one.level) return;
  const every = Math.max(1, Math.floor(points.length / 10));
  if (!one.thin || points.length < 3)
    points.forEach(([a, b], i) => { if (i % every === 0) marker(svg, one.style, a, b, one.thin ? 2 : 3.2); });
}

function nearest(series, x, y, px, py) {
  let best = null;
  for (const one of series) {
    if (one.level) continue;
    one.x.forEach((value, i) => {
      const distance = Math.hypot((x(value) - px) * 2, y(one.y[i]) - py);
      if (!best || distance < best.distance) best = { distance, one, x: value, y: one.y[i], i };
    });
  }
  return best;
}

function tipLines(spec, series, hit) {
  const lines = [`${spec.xname} ${shown(hit.x, spec.unit)}`];
  const shown = hit.one.thin ? [hit.one, ...series.filter((one) => !one.thin)] : series.filter((one) => !one.thin);
  for (const one of shown) {
    const i = one.level ? 0 : one.x.indexOf(hit.x);
    if (i < 0 && spec.unit !== "bytes") continue;
    if (i < 0 && one !== hit.one) continue;
    let text = `${one.name}: ${shown(one.y[i], spec.yunit)}`;
    if (one.low && one.sd) text += ` ± ${plain(one.sd[i])}`;
    else if (one.low) text += ` (${shown(one.low[i], spec.yunit)} to ${shown(one.high[i], spec.yunit)})`;
    lines.push(text);
  }
  return lines;
}

function drawLanes(figure, svg, spec, width) {
  const each = 46;
  const height = 8 + each * spec.lanes.length + 44;
  svg.setAttribute("height", height);
  const values = spec.lanes.flatMap((lane) => [
    ...(lane.points || []).map((point) => point.value), ...(lane.interval || []), ...(lane.box || []),
    ...(lane.mean === null || lane.mean === undefined ? [] : [lane.mean]),
  ]);
  if (spec.zero) values.push(0);
  if (!values.length) values.push(0, 1);
  let [low, high] = range(values, 0.05);
  if (spec.bars) low = 0;
  const frame = { left: 18, right: width - 18, top: 4, bottom: height - 44 };
  const x = axisBelow(svg, frame, low, high, spec.x, spec.unit, spec.whole);
  if (spec.zero) make(svg, "line", { x1: x(0), x2: x(0), y1: frame.top, y2: frame.bottom, stroke: "#000" });
  spec.lanes.forEach((lane, i) => {
    const top = 8 + i * each;
    const over = { y: top + 12, style: "paint-order:stroke", stroke: "#fff", "stroke-width": 4 };
    const shown = make(svg, "text", { x: width - 2, "text-anchor": "end", ...over }, lane.text);
    const name = make(svg, "text", { x: 2, ...over }, lane.label);
    shorten(name, width - 14 - shown.getComputedTextLength());
    drawLane(figure, svg, spec, lane, x, top + 29);
  });
}

function drawLane(figure, svg, spec, lane, x, y) {
  const colour = colourOf(lane.style);
  if (spec.bars && lane.mean !== null)
    make(svg, "rect", { x: x(0), y: y - 8, width: Math.max(0, x(lane.mean) - x(0)), height: 16, fill: colour, opacity: 0.55 });
  if (lane.box) {
    const [first, median, third] = lane.box.map(x);
    make(svg, "rect", { x: first, y: y - 9, width: Math.max(1, third - first), height: 18, fill: colour, opacity: 0.18 });
    make(svg, "line", { x1: median, x2: median, y1: y - 9, y2: y + 9, stroke: "#000", "stroke-width": 2 });
  }
  (lane.points || []).forEach((point, i) => {
    const lift = spec.bars ? 0 : ((i * 7) % 11 - 5) * 1.3;
    const dot = marker(svg, lane.style, x(point.value), y + lift, 2.6);
    dot.setAttribute("opacity", spec.bars ? 1 : 0.55);
    hover(figure, dot, [point.name, plain(point.value)], x(point.value), y);
  });
  if (lane.interval) {
    const [from, to] = lane.interval.map(x);
    make(svg, "line", { x1: from, x2: to, y1: y, y2: y, stroke: colour, "stroke-width": 2 });
    for (const end of [from, to]) make(svg, "line", { x1: end, x2: end, y1: y - 5, y2: y + 5, stroke: colour, "stroke-width": 2 });
  }
  if (!spec.bars && lane.mean !== null && lane.mean !== undefined) {
    const dot = marker(svg, lane.style, x(lane.mean), y, 4.5);
    hover(figure, dot, [lane.label, lane.text], x(lane.mean), y);
  }
}

const below = (figure) => figure.querySelector("figcaption").offsetHeight;  // where its drawing begins

function hover(figure, node, lines, x, y) {
  const offset = below(figure);
  node.addEventListener("pointerenter", () => tooltip(figure, lines, x, y + offset));
  node.addEventListener("pointerdown", () => tooltip(figure, lines, x, y + offset));
  node.addEventListener("pointerleave", () => tooltip(figure, null));
}

function drawHeat(figure, svg, spec, width) {
  const clients = spec.counts.length, classes = spec.counts[0].length;
  const each = Math.max(9, Math.min(20, 420 / clients));
  const longest = Math.max(...spec.clients.map((name) => name.length));
  const frame = { left: 10 + 7 * longest, right: width - 6, top: 24, bottom: 24 + each * clients };
  svg.setAttribute("height", frame.bottom + 44);
  make(svg, "text", { x: 0, y: 13 }, "client");
  const largest = Math.max(1, most(spec.counts.flat()));
  drawScale(svg, width, largest);
  const wide = (frame.right - frame.left) / classes;
  spec.counts.forEach((row, k) => row.forEach((count, c) => {
    const cell = make(svg, "rect", {
      x: frame.left + c * wide, y: frame.top + k * each, width: Math.max(1, wide - 1), height: each - 1, fill: shade(count / largest),
    });
    const name = `client ${spec.clients[k]}, class ${spec.classes[c]}`;
    hover(figure, cell, [name, `${count} training samples`], frame.left + (c + 0.5) * wide, frame.top + k * each);
  }));
  const skip = Math.ceil(13 / each);
  spec.clients.forEach((name, k) => {
    if (k % skip === 0)
      make(svg, "text", { x: frame.left - 5, y: frame.top + (k + 0.5) * each + 4, "text-anchor": "end" }, name);
  });
  const jump = Math.ceil((8 + 7 * Math.max(...spec.classes.map((name) => name.length))) / wide);
  spec.classes.forEach((name, c) => {
    if (c % jump === 0)
      make(svg, "text", { x: frame.left + (c + 0.5) * wide, y: frame.bottom + 15, "text-anchor": "middle" }, name);
  });
  make(svg, "text", { x: (frame.left + frame.right) / 2, y: frame.bottom + 34, "text-anchor": "middle" }, "class");
}

function drawScale(svg, width, largest) {
  const left = width - 150;
  for (let i = 0; i < 20; i++)
    make(svg, "rect", { x: left + 20 + i * 4, y: 4, width: 4.5, height: 10, fill: shade(i / 19) });
  make(svg, "text", { x: left + 14, y: 13, "text-anchor": "end" }, "0");
  make(svg, "text", { x: left + 105, y: 13 }, String(largest));
}

function shade(part) {  // from a pale grey to a dark blue, by lightness alone: no two hues to confuse
  if (part <= 0) return "#f1f2f4";
  const mix = (from, to) => Math.round(from + (to - from) * Math.sqrt(part));
  return `rgb(${mix(214, 0)},${mix(230, 50)},${mix(244, 100)})`;
}

function drawLegend(holder, spec) {
  const off = hidden[spec.group] = hidden[spec.group] || new Set();
  for (const { name, style } of spec.names) {
    const button = document.createElement("button");
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    button.title = "show or hide";
    const swatch = make(button, "svg", { width: 34, height: 12 });
    const dash = DASHES[style % DASHES.length];
    make(swatch, "line", { x1: 0, x2: 34, y1: 6, y2: 6, stroke: colourOf(style), "stroke-width": 2, "stroke-dasharray": dash });
    marker(swatch, style, 17, 6, 3.4);
    button.append(name);
    button.onclick = () => {
      const isOff = off.has(style);
      if (isOff) off.delete(style); else off.add(style);
      button.setAttribute("aria-pressed", String(isOff));
      drawAll();
    };
    holder.appendChild(button);
  }
}

const DRAW = { lines: drawLines, lanes: drawLanes, heat: drawHeat };
const figures = [...document.querySelectorAll("figure[data-chart]")];

function draw(figure) {
  const spec = specs[figure.dataset.chart];
  const width = figure.clientWidth;
  if (!width) return;
  figure.querySelectorAll("svg, .tip").forEach((before) => before.remove());
  const svg = make(figure, "svg", { role: "img", "aria-label": figure.querySelector("figcaption").textContent });
  DRAW[spec.kind](figure, svg, spec, width);
  figure.dataset.width = width;
}

function drawAll() { figures.forEach(draw); }

document.querySelectorAll("div[data-legend]").forEach((holder) => drawLegend(holder, specs[holder.dataset.legend]));
drawAll();
const watch = new ResizeObserver((entries) => {
  for (const { target } of entries) if (Number(target.dataset.width) !== target.clientWidth) draw(target);
});
figures.forEach((figure) => watch.observe(figure));
