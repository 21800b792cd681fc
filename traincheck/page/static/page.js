// Draws the curves and maps of a page from its data. Texts of the data become text nodes only.
(() => {
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const {width, columns} = data.axis;
const ABSENT = 0, ZERO = 254, BROKEN = 255, LEVELS = 252;
const end = Math.max(columns * width - 1, 1);
const view = {from: 0, to: end, step: null};
const plots = [], maps = [];

const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
const floats = text => new Float32Array(bytes(text).buffer);
const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const make = (name, parent, text, kind) => {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  parent.appendChild(made);
  return made;
};
const shown = n => n === 0 ? "0" : Math.abs(n) >= 1e5 || Math.abs(n) < 1e-3 ? n.toExponential(2) : String(+n.toPrecision(4));
const dark = matchMedia("(prefers-color-scheme: dark)");
// Okabe and Ito; on a dark page the blue of the first line is the lighter one.
const LINES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"], DARK = ["#56b4e9", ...LINES.slice(1, 5), "#0072b2"];
const ANCHORS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const TABLE = Array.from({length: 256}, (_, code) => {
  const place = Math.min(Math.max((code - 1) / (LEVELS - 1), 0), 1) * (ANCHORS.length - 1);
  const low = Math.min(Math.floor(place), ANCHORS.length - 2), part = place - low;
  return ANCHORS[low].map((c, i) => Math.round(c + (ANCHORS[low + 1][i] - c) * part));
});
const BAD = "#ff0033"; // not finite
const KINDS = {error: "--error", difference: "--error", warning: "--warning", info: "--info", save: "--good", load: "--good"};

// -- the steps that are shown, in all drawings at once

let moving = false;
function show(from, to) {
  if (moving) return;
  moving = true;
  view.from = Math.max(0, Math.min(from, to));
  view.to = Math.min(end, Math.max(from, to, view.from + 1));
  for (const plot of plots) plot.setScale("x", {min: view.from, max: view.to});
  for (const map of maps) map.draw();
  moving = false;
}
function goTo(step) {
  view.step = step;
  const half = Math.max(Math.round((view.to - view.from) / 10), 4 * width);
  show(Math.max(step - half, 0), step + half);
  const near = [...document.querySelectorAll("[data-inspected]")]
    .sort((a, b) => Math.abs(a.dataset.inspected - step) - Math.abs(b.dataset.inspected - step))[0];
  if (near && Math.abs(near.dataset.inspected - step) <= width) near.open = true;
}

// -- curves

function line(plot, step, name, dash) {
  const {ctx} = plot, x = Math.round(plot.valToPos(step, "x", true));
  if (step < view.from || step > view.to) return;
  ctx.save();
  ctx.strokeStyle = colour(name);
  ctx.setLineDash(dash);
  ctx.beginPath();
  ctx.moveTo(x, plot.bbox.top);
  ctx.lineTo(x, plot.bbox.top + plot.bbox.height);
  ctx.stroke();
  ctx.restore();
}
function behind(plot) {
  const {ctx} = plot;
  ctx.save();
  ctx.fillStyle = colour("--panel");
  for (const step of data.evaluations) {
    const x = plot.valToPos(step, "x", true), wide = Math.max(plot.valToPos(step + width, "x", true) - x, 2);
    if (step >= view.from && step <= view.to) ctx.fillRect(x, plot.bbox.top, wide, plot.bbox.height);
  }
  ctx.restore();
}
const WHOLE = Array.from({length: 12}, (_, power) => [1, 2, 5].map(n => n * 10 ** power)).flat(); // distances of ticks of steps
function decades(plot, axis, least, most) {
  const first = Math.floor(Math.log10(least)), last = Math.ceil(Math.log10(most));
  const every = Math.max(Math.ceil((last - first) / 5), 1), made = [];
  for (let power = first; power <= last; power += every) made.push(10 ** power);
  return made;
}
function above(plot) {
  const {left, top, width: across, height} = plot.bbox;
  plot.ctx.save();
  plot.ctx.beginPath();
  plot.ctx.rect(left, top, across, height);
  plot.ctx.clip();
  plot.ctx.fillStyle = BAD; // a number that is not finite is no gap
  for (const step of plot.broken || []) {
    if (step < view.from || step > view.to) continue;
    const x = plot.valToPos(step, "x", true), wide = Math.max(plot.valToPos(step + width, "x", true) - x, 3);
    plot.ctx.fillRect(x - wide / 2, top, wide, 8 * (devicePixelRatio || 1));
  }
  plot.ctx.restore();
  for (const mark of data.marks) line(plot, mark.step, KINDS[mark.kind] || "--soft", [4, 4]);
  if (view.step !== null) line(plot, view.step, "--accent", []);
}
function plotted(parent, name, curves, height) {
  const box = make("div", parent, undefined, "plot");
  make("h3", box, name);
  const size = Math.max(...curves.map(c => c.high.length), 2);
  const xs = Array.from({length: size}, (_, i) => i * width);
  const values = [xs], series = [{label: "step"}], bands = [];
  const clean = numbers => Array.from({length: size}, (_, i) => Number.isFinite(numbers[i]) ? numbers[i] : null);
  let least = Infinity, most = -Infinity;
  for (const curve of curves) for (const numbers of [curve.low || curve.high, curve.high]) for (const n of numbers) {
    if (Number.isFinite(n)) { least = Math.min(least, n); most = Math.max(most, n); }
  }
  const isLog = least > 0 && most / least > 1000 && name !== "learning rate";
  curves.forEach((curve, index) => {
    const stroke = () => (dark.matches ? DARK : LINES)[index % LINES.length];
    const main = clean(curve.middle || curve.high), said = (_, v) => v === null ? "" : shown(v);
    const recorded = main.filter(n => n !== null).length;
    const points = {show: recorded < 40 || recorded < size / 2, size: 4};
    const edge = (side, name) => {
      values.push(clean(curve[side]));
      series.push({label: `${curve.label} (${name})`, stroke, width: 0.5, points: {show: false}, value: said});
      return values.length - 1;
    };
    values.push(main);
    series.push({label: curve.label, stroke, width: 1.5, points, dash: curve.dash, value: said});
    const upper = curve.middle ? edge("high", "highest") : values.length - 1;
    if (curve.low) bands.push({series: [upper, edge("low", "lowest")], fill: () => `${stroke()}33`});
  });
  const axis = {stroke: () => colour("--soft"), grid: {stroke: () => colour("--line"), width: 1}, ticks: {stroke: () => colour("--line")}};
  const plot = new uPlot({
    width: box.clientWidth || 800, height, series, bands,
    scales: {x: {time: false, min: 0, max: end}, y: {distr: isLog ? 3 : 1}},
    axes: [{...axis, incrs: WHOLE}, {...axis, size: 70, ...(isLog ? {splits: decades} : {}), values: (_, ticks) => ticks.map(t => t === null ? "" : shown(t))}],
    cursor: {sync: {key: "steps"}, drag: {x: true, y: false}},
    hooks: {
      drawClear: [behind], draw: [above],
      setScale: [(p, key) => { if (key === "x" && !moving) show(p.scales.x.min, p.scales.x.max); }],
    },
  }, values, box);
  plot.broken = xs.filter((_, i) => curves.some(c => c.high[i] === Infinity));
  if (plot.broken.length) {
    make("p", box, `Not finite at ${plot.broken.length > 1 ? `${plot.broken.length} points, first at ` : ""}step ${plot.broken[0]} (red).`, "hint");
    plot.redraw(false);
  }
  plots.push(plot);
  new ResizeObserver(() => plot.setSize({width: box.clientWidth || 800, height})).observe(box);
  return box;
}

// -- maps

const STRIP = 8; // height of the strip of marks above a map, in CSS pixels
const weight = code => code === ZERO ? 0.5 : code; // of two numbers in one pixel the larger is drawn
class HeatMap {
  constructor(parent, map) {
    this.map = map;
    this.codes = bytes(map.cells);
    this.order = map.rows.map((_, i) => i);
    this.at = {row: 0, column: 0};
    const box = make("div", parent, undefined, "map");
    make("h3", box, map.name + (map.left_out ? ` (${map.left_out} layers are left out)` : ""));
    this.scale(box);
    const frame = make("div", box, undefined, "frame");
    this.names = make("div", frame, undefined, "names");
    this.canvas = make("canvas", frame);
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", `${map.name} of ${map.rows.length} layers over ${columns * width} steps`);
    this.ends = make("div", box, undefined, "ends");
    this.value = make("div", box, undefined, "value");
    this.value.setAttribute("aria-live", "polite");
    this.below = make("div", box);
    this.canvas.addEventListener("mousemove", e => this.hover(e));
    this.canvas.addEventListener("click", e => { this.hover(e); this.curve(); });
    this.canvas.addEventListener("keydown", e => this.key(e));
    new ResizeObserver(() => this.draw()).observe(frame);
    maps.push(this);
    this.draw();
  }
  number(code) {
    const {low, high} = this.map;
    if (code === ZERO) return 0;
    return low * Math.exp((code - 1) / (LEVELS - 1) * Math.log(high / low || 1));
  }
  scale(box) {
    const line = make("div", box, undefined, "scale");
    make("span", line, shown(this.map.low));
    const bar = make("i", line);
    bar.style.background = `linear-gradient(90deg, ${ANCHORS.map(c => `rgb(${c})`).join(",")})`;
    make("span", line, shown(this.map.high));
    for (const [ink, text] of [[BAD, "not finite"], ["#8a8f98", "0"]]) {
      const key = make("span", line);
      make("i", key).style.cssText = `width:12px;margin-right:6px;background:${ink}`;
      key.append(text);
    }
    const choice = make("select", line);
    choice.setAttribute("aria-label", "Order of the rows");
    for (const text of ["in model order", "largest at the end first", "largest peak first"]) make("option", choice, text);
    choice.addEventListener("change", () => this.sort(choice.selectedIndex));
  }
  sort(how) {
    const wide = this.map.columns, row = i => this.codes.subarray(i * wide, (i + 1) * wide);
    const peak = i => row(i).reduce((most, c) => Math.max(most, weight(c)), 0);
    const last = i => weight([...row(i)].reverse().find(c => c !== ABSENT) || 0);
    this.order = this.map.rows.map((_, i) => i);
    if (how) this.order.sort((a, b) => (how === 1 ? last(b) - last(a) : peak(b) - peak(a)) || a - b);
    this.draw();
  }
  draw() {
    const {map, canvas, codes} = this, rows = map.rows.length;
    const ratio = devicePixelRatio || 1, wide = Math.max(Math.round(canvas.clientWidth * ratio), 50);
    const tall = Math.max(3, Math.min(16, Math.floor(640 / rows))), deep = Math.max(Math.round(tall * ratio), 1);
    const strip = Math.round(STRIP * ratio);
    canvas.style.height = `${tall * rows + STRIP}px`;
    canvas.width = wide;
    canvas.height = deep * rows + strip;
    const context = canvas.getContext("2d"), image = context.createImageData(wide, deep * rows);
    const pixels = new Uint32Array(image.data.buffer), first = view.from / map.width, span = (view.to - view.from + 1) / map.width;
    const ink = TABLE.map(([r, g, b]) => (255 << 24 | b << 16 | g << 8 | r) >>> 0);
    ink[ABSENT] = 0;
    ink[ZERO] = 0xff988f8a;
    ink[BROKEN] = 0xff3300ff; // BAD
    for (let y = 0; y < rows; y++) {
      const start = this.order[y] * map.columns, top = y * deep * wide;
      for (let x = 0; x < wide; x++) {
        const from = Math.floor(first + x / wide * span), to = Math.max(Math.ceil(first + (x + 1) / wide * span), from + 1);
        let code = ABSENT;
        for (let c = Math.max(from, 0); c < to && c < map.columns; c++) if (weight(codes[start + c]) > weight(code)) code = codes[start + c];
        pixels[top + x] = ink[code];
      }
      for (let d = 1; d < deep; d++) pixels.copyWithin(top + d * wide, top, top + wide);
    }
    context.putImageData(image, 0, strip);
    for (const mark of data.marks) if (mark.finding !== undefined || mark.kind === "difference") this.tick(context, mark.step, colour(KINDS[mark.kind] || "--soft"), wide, strip);
    if (view.step !== null) this.tick(context, view.step, colour("--text"), wide, strip);
    this.label(tall);
    this.ends.replaceChildren();
    for (const step of [view.from, view.to]) make("span", this.ends, `step ${Math.round(step)}`);
  }
  tick(context, step, stroke, wide, strip) { // above the cells, which it must not hide
    if (step < view.from || step > view.to) return;
    const x = (step + 0.5 - view.from) / (view.to - view.from + 1) * wide;
    context.fillStyle = stroke;
    context.beginPath();
    context.moveTo(x - strip / 2, 0);
    context.lineTo(x + strip / 2, 0);
    context.lineTo(x, strip);
    context.fill();
  }
  label(tall) {
    this.names.replaceChildren();
    const every = Math.max(Math.ceil(12 / tall), 1);
    this.order.forEach((row, y) => {
      if (y % every) return;
      const name = make("div", this.names);
      make("bdi", name, this.map.rows[row]);
      name.title = this.map.rows[row];
      name.style.cssText = `height:${tall * Math.min(every, this.order.length - y)}px;line-height:${tall < 12 ? 12 : tall}px`;
    });
  }
  hover(event) {
    const box = this.canvas.getBoundingClientRect();
    this.at.row = Math.min(Math.floor((event.clientY - box.top - STRIP) / (box.height - STRIP) * this.order.length), this.order.length - 1);
    const step = view.from + (event.clientX - box.left) / box.width * (view.to - view.from + 1);
    this.at.column = Math.min(Math.floor(step / this.map.width), this.map.columns - 1);
    this.tell();
  }
  tell() {
    const row = this.order[Math.max(this.at.row, 0)], column = Math.max(this.at.column, 0);
    const code = this.codes[row * this.map.columns + column], wide = this.map.width, from = column * wide;
    const steps = wide > 1 ? `steps ${from} to ${from + wide - 1}` : `step ${from}`;
    const said = code === ABSENT ? "not recorded" : code === BROKEN ? "not finite" : shown(this.number(code));
    this.value.textContent = `${this.map.rows[row]}, ${steps}: ${said}`;
  }
  key(event) {
    const moves = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}, move = moves[event.key];
    if (event.key === "Enter") this.curve();
    if (!move) return;
    event.preventDefault();
    this.at.row = Math.min(Math.max(this.at.row + move[0], 0), this.order.length - 1);
    this.at.column = Math.min(Math.max(this.at.column + move[1], 0), this.map.columns - 1);
    this.tell();
  }
  curve() {
    const row = this.order[Math.max(this.at.row, 0)], start = row * this.map.columns, repeat = this.map.width / width;
    const numbers = new Float32Array(columns).map((_, i) => {
      const code = this.codes[start + Math.floor(i / repeat)];
      return code === ABSENT || code === BROKEN ? NaN : this.number(code);
    });
    if (this.plot) plots.splice(plots.indexOf(this.plot), 1)[0].destroy();
    this.below.replaceChildren();
    plotted(this.below, `${this.map.rows[row]}, ${this.map.name}`, [{label: this.map.name, high: numbers}], 160);
    this.plot = plots[plots.length - 1];
    show(view.from, view.to);
  }
}

// -- the page

const place = document.getElementById("curves");
for (const name of new Set(data.curves.map(c => c.name))) {
  const curves = data.curves.filter(c => c.name === name)
    .map(c => ({label: c.label, high: floats(c.high), low: c.low && floats(c.low), middle: c.middle && floats(c.middle)}));
  plotted(place, name, curves, name === "loss" ? 220 : 150);
}
const below = document.getElementById("heatmaps");
for (const map of data.maps) if (map.rows.length && map.columns) new HeatMap(below, map);
document.addEventListener("click", event => {
  const link = event.target.closest("[data-step]");
  if (link) goTo(Number(link.dataset.step));
});
// -- keys: j and k go through the findings, + and - zoom, 0 shows all steps

const cards = [...document.querySelectorAll(".finding")];
let card = -1;
document.addEventListener("keydown", event => {
  if (event.target.closest("select") || event.ctrlKey || event.metaKey || event.altKey) return;
  const middle = view.step === null ? (view.from + view.to) / 2 : view.step, half = (view.to - view.from) / 2;
  if (event.key === "0") show(0, end);
  if (event.key === "+") show(middle - half / 2, middle + half / 2);
  if (event.key === "-") show(middle - half * 2, middle + half * 2);
  if (event.key !== "j" && event.key !== "k" || !cards.length) return;
  card = Math.min(Math.max(card + (event.key === "j" ? 1 : -1), 0), cards.length - 1);
  for (const one of cards) one.classList.toggle("here", one === cards[card]);
  cards[card].focus();
  cards[card].scrollIntoView({block: "center"});
});
dark.addEventListener("change", () => { for (const plot of plots) plot.redraw(); for (const map of maps) map.draw(); });
})();
