"use strict";
// One page of runs: filters, plots, details of the chosen runs. Everything is drawn from the JSON in #data.
const data = JSON.parse(document.getElementById("data").textContent);
const state = { group: 0, off: {}, chosen: new Set(), log: false };
const byId = (id) => document.getElementById(id);
const TITLES = { lpips: "LPIPS (lower is better)", psnr: "PSNR, dB (higher is better)", speedup: "DiT speed-up, measured",
  forward_fraction: "forward fraction (cheaper to the right)" };
const HIGHER = { psnr: true, lpips: false, speedup: true, forward_fraction: false };

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "circle", "path", "line", "text", "rect", "g", "title"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}
const group = () => data.groups[state.group];
const passes = (run) => Object.entries(state.off).every(([axis, off]) => !off.has(run.axes[axis]));
const visible = () => group().runs.filter(passes);
const compared = (runs) => runs.filter((run) => run.kind === "run");
const dashes = (run) => (run.dash || []).join(" ");
// What nothing beats, each sampling for itself; the oracle and random masks do not compete.
const fronts = (runs, cost, quality) => [...new Set(runs.map((run) => run.sampling))].flatMap((one) =>
  front(runs.filter((run) => run.rival && run.sampling === one), cost, quality));
const shown = (value, digits = 4) => (value === null || value === undefined ? "-" : Number(value.toPrecision(digits)).toString());

function front(runs, cost, quality) {
  // Numbers count as the table shows them; of runs that agree in both all are kept.
  const good = (run) => run.rank[quality] !== null ? (HIGHER[quality] ? 1 : -1) * run.rank[quality] : run.exact ? Infinity : null;
  const cheap = (run) => (HIGHER[cost] ? 1 : -1) * run.rank[cost];
  const known = runs.filter((run) => run.rank[cost] !== null && good(run) !== null);
  known.sort((a, b) => cheap(b) - cheap(a) || (good(a) === good(b) ? 0 : good(b) - good(a)));
  let best = null;
  const beats = (run) => best === null || good(run) > good(best) || (good(run) === good(best) && cheap(run) === cheap(best));
  return known.filter((run) => beats(run) && ((best = run), true)).reverse();
}

function ticks(low, high, log) {
  if (log) {
    const found = [];
    for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p++)
      for (const m of [1, 2, 5]) if (m * 10 ** p >= low && m * 10 ** p <= high) found.push(m * 10 ** p);
    return found;
  }
  const raw = (high - low) / 5, base = 10 ** Math.floor(Math.log10(raw));
  const step = base * [1, 2, 5, 10].find((m) => m * base >= raw), found = [];
  for (let v = Math.ceil(low / step); v * step <= high + step * 1e-6; v++) found.push(v * step);
  return found;
}

function frame(xs, ys, { reverse = false, log = false, xtitle = "", ytitle = "", whole = false, xmax = null, tops = [] }) {
  const W = 600, L = 58, R = 12, B = 40;
  const pad = (values, log) => {
    let low = Math.min(...values), high = Math.max(...values);
    if (log) return [low / 1.3, high * 1.3];
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
  };
  const [x0, x1] = whole ? [0, Math.max(1, xmax)] : pad(xs, false), [y0, y1] = pad(ys, log);
  const f = log ? Math.log : (v) => v;
  const px = (v) => { const t = (v - x0) / (x1 - x0); return L + (reverse ? 1 - t : t) * (W - L - R); };
  const ends = []; // of the names above the plot, row by row
  const names = tops.map(([text, at]) => [text, px(at)]).sort((a, b) => a[1] - b[1]).map(([text, at]) => {
    const wide = 6.4 * text.length, left = Math.min(Math.max(at - wide / 2, L), W - R - wide), row = [...ends, -Infinity].findIndex((end) => end < left);
    ends[row] = left + wide + 8;
    return [text, left + wide / 2, row];
  });
  const T = 14 + 13 * ends.length, H = 326 + T;
  const py = (v) => H - B - ((f(v) - f(y0)) / (f(y1) - f(y0))) * (H - B - T);
  const svg = make("svg", { viewBox: `0 0 ${W} ${H}`, role: "img" });
  for (const [text, x, row] of names) svg.append(make("text", { x, y: T - 8 - 13 * row, "text-anchor": "middle", class: "top" }, text));
  for (const v of ticks(y0, y1, log)) {
    svg.append(make("line", { x1: L, x2: W - R, y1: py(v), y2: py(v), stroke: "#eef0f3" }));
    svg.append(make("text", { x: L - 6, y: py(v) + 4, "text-anchor": "end" }, shown(v, 3)));
  }
  for (const v of whole ? [...Array(Math.max(1, xmax) + 1).keys()] : ticks(x0, x1, false))
    svg.append(make("text", { x: px(v), y: H - B + 20, "text-anchor": "middle" }, shown(v, 3)));
  svg.append(make("path", { d: `M${L},${T}V${H - B}H${W - R}`, fill: "none", stroke: "#9aa3af" }));
  svg.append(make("text", { x: (L + W - R) / 2, y: H - 6, "text-anchor": "middle" }, xtitle));
  svg.append(make("text", { x: 0, y: 0, "text-anchor": "middle", transform: `translate(13 ${(T + H - B) / 2}) rotate(-90)` }, ytitle));
  return { svg, px, py, top: T, bottom: H - B, left: L, right: W - R };
}

function mark(run, x, y, r = 5) {
  const star = [...Array(10).keys()].map((i) => { const a = (i * Math.PI) / 5, l = i % 2 ? r * 0.5 : r * 1.25; return `${x + l * Math.sin(a)},${y - l * Math.cos(a)}`; });
  const paths = { 2: `M${x},${y - r}L${x + r},${y + r * 0.8}H${x - r}Z`, 3: `M${x},${y - r}L${x + r},${y}L${x},${y + r}L${x - r},${y}Z`, 4: `M${x},${y + r}L${x + r},${y - r * 0.8}H${x - r}Z`,
    5: `M${x - r + 1},${y - r + 1}l${2 * r - 2},${2 * r - 2}m0,${2 - 2 * r}l${2 - 2 * r},${2 * r - 2}`, 6: `M${star.join("L")}Z` };
  const shape = run.mark in paths ? make("path", { d: paths[run.mark] }) :
    run.mark === 1 ? make("rect", { x: x - r + 0.5, y: y - r + 0.5, width: 2 * r - 1, height: 2 * r - 1 }) : make("circle", { cx: x, cy: y, r: run.mark === 7 ? r * 0.6 : r });
  shape.setAttribute("fill", run.hollow ? "#fff" : run.colour);
  shape.setAttribute("stroke", state.chosen.has(run.key) ? "#000" : run.colour);
  shape.setAttribute("stroke-width", state.chosen.has(run.key) ? 2 : 1.4);
  return shape;
}

function tip(event, text) {
  const node = byId("tip");
  node.hidden = text === null;
  if (text === null) return;
  node.textContent = text;
  node.style.left = Math.min(event.clientX + 14, innerWidth - node.offsetWidth - 8) + "px";
  node.style.top = Math.min(event.clientY + 14, innerHeight - node.offsetHeight - 8) + "px";
}
const describe = (run) => [run.label, `${run.signature}, reference ${run.reference}`,
  `LPIPS ${shown(run.lpips)}  PSNR ${run.exact ? "exact" : shown(run.psnr)}  SSIM ${shown(run.ssim)}`,
  `speed-up ${shown(run.speedup, 3)}  forward ${shown(run.forward_fraction, 3)}  ceiling ${shown(run.ceiling, 3)}`,
  `commit ${run.commit}, ${run.machine}${run.when ? ", " + run.when : ""}`].join("\n");

const few = (names) => (names.length < 3 ? names.join(" ") : `${names[0]} and ${names.length - 1} more`);
function scatter(cost, quality) {
  const runs = visible(), log = state.log && quality === "lpips";
  const points = compared(runs).filter((r) => r[cost] !== null && r[quality] !== null && !(log && r[quality] <= 0));
  const box = make("figure");
  if (!points.length) return box;
  const floors = runs.filter((r) => r.kind === "noise" && r[quality] !== null && !(log && r[quality] <= 0));
  const used = new Set(points.map((r) => `${r.ceiling.toFixed(6)} ${r.schedule}`));
  const tops = group().ceilings.map(([top, names]) => [few(names.filter((name) => used.has(`${top.toFixed(6)} ${name}`))), cost === "speedup" ? top : 1 / top]);
  const near = tops.filter(([names]) => names);
  const ys = points.map((r) => r[quality]);
  const plot = frame([...points.map((r) => r[cost]), ...near.map((t) => t[1])], ys,
    { reverse: cost === "forward_fraction", log, xtitle: TITLES[cost], ytitle: TITLES[quality], tops: near });
  const { svg, px, py } = plot;
  for (const [, where] of near)
    svg.append(make("line", { x1: px(where), x2: px(where), y1: plot.top - 4, y2: plot.bottom, stroke: "#d8dce2", class: "ceiling" }));
  for (const run of floors.filter((r) => py(r[quality]) > plot.top && py(r[quality]) < plot.bottom)) // another seed is far off most plots
    svg.append(make("line", { x1: plot.left, x2: plot.right, y1: py(run[quality]), y2: py(run[quality]), stroke: "#9aa3af", "stroke-dasharray": "2 3" }));
  for (const line of new Set(points.map((r) => r.line))) {
    const all = points.filter((r) => r.line === line);
    const own = all[0].role === "random" ? all.sort((a, b) => a[cost] - b[cost]) : front(all, cost, quality);
    if (all[0].dash === null || !own.length) continue;
    const d = own.map((r, i) => `${i ? "L" : "M"}${px(r[cost])},${py(r[quality])}`).join("");
    svg.append(make("path", { d, fill: "none", stroke: own[0].colour, "stroke-width": 1.4, opacity: 0.7, "stroke-dasharray": dashes(own[0]) }));
  }
  for (const run of fronts(compared(runs), cost, quality).filter((r) => points.includes(r)))
    svg.append(make("circle", { cx: px(run[cost]), cy: py(run[quality]), r: 9, fill: "none", stroke: "#1c2430", class: "front" }));
  for (const run of points) {
    const shape = mark(run, px(run[cost]), py(run[quality]));
    shape.setAttribute("class", "point");
    shape.addEventListener("mousemove", (event) => tip(event, describe(run)));
    shape.addEventListener("mouseleave", (event) => tip(event, null));
    shape.addEventListener("click", () => toggle(run.key));
    svg.append(shape);
  }
  box.append(svg);
  const absent = compared(runs).filter((r) => r[cost] !== null && !points.includes(r) && (r.exact || r[quality] !== null));
  if (absent.length) box.append(make("figcaption", {}, `Not drawn, ${quality === "psnr" ? "identical to the reference" : "0 on a log scale"}: ${absent.slice(0, 6).map((r) => r.label).join("; ")}${absent.length > 6 ? `; ${absent.length - 6} more` : ""}.`));
  return box;
}

function key(run, name) {
  const node = make("span");
  const icon = make("svg", { viewBox: "0 0 34 12" });
  icon.append(make("line", { x1: 0, x2: 34, y1: 6, y2: 6, stroke: run.dash ? run.colour : "none", "stroke-dasharray": dashes(run) }), mark(run, 17, 6, 4));
  node.append(icon, name);
  return node;
}

function draw() {
  const runs = visible(), ours = new Set(runs.map((run) => run.key));
  byId("count").textContent = `${runs.length} of ${group().runs.length} run${group().runs.length === 1 ? "" : "s"}.`;
  byId("plots").replaceChildren(...["lpips", "psnr"].flatMap((q) => ["speedup", "forward_fraction"].map((c) => scatter(c, q))).filter((box) => box.firstChild));
  const lines = new Map(compared(runs).map((run) => [run.line, run]));
  byId("legend").replaceChildren(...[...lines].sort((a, b) => (a[1].role === "method" ? 0 : 1) - (b[1].role === "method" ? 0 : 1)).map(([name, run]) => key(run, name)));
  for (const row of document.querySelectorAll("#runs tbody tr")) {
    row.hidden = !ours.has(row.dataset.key);
    row.classList.toggle("chosen", state.chosen.has(row.dataset.key));
  }
  for (const part of document.querySelectorAll("[data-group]:not(tr)")) part.hidden = Number(part.dataset.group) !== state.group;
  details(runs.filter((run) => state.chosen.has(run.key)));
}
function toggle(name) {
  if (!state.chosen.delete(name)) state.chosen.add(name);
  draw();
}
