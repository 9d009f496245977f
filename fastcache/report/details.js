"use strict";
// Details of the chosen runs, and the controls. Reads what page.js defines.
const RAMP = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
function ramp(share) {
  const at = Math.min(Math.max(share, 0), 1) * (RAMP.length - 1), i = Math.min(Math.floor(at), RAMP.length - 2);
  return `rgb(${RAMP[i].map((v, c) => Math.round(v + (RAMP[i + 1][c] - v) * (at - i))).join(",")})`;
}

function heat(run) {
  const box = make("figure", {}, make("b", {}, named(run)));
  if (!run.heat) return box.append(make("p", { class: "faint" }, "no trace.json")), box;
  const cell = 26, W = run.heat.length * cell + 26, H = run.heat[0].length * cell + 22;
  const svg = make("svg", { viewBox: `0 0 ${W} ${H}`, width: W, height: H, class: "heat" });
  run.heat.forEach((steps, chunk) => steps.forEach((share, step) => {
    const rect = make("rect", { x: 22 + chunk * cell, y: step * cell, width: cell - 1, height: cell - 1, fill: ramp(share) });
    rect.append(make("title", {}, `chunk ${chunk}, step ${step}: ${shown(share, 3)} computed`));
    svg.append(rect);
    if (!chunk) svg.append(make("text", { x: 14, y: step * cell + 17, "text-anchor": "end" }, step));
    if (!step) svg.append(make("text", { x: 22 + chunk * cell + cell / 2, y: H - 6, "text-anchor": "middle" }, chunk));
  }));
  box.append(svg);
  return box;
}

function curve(runs, quality) {
  const known = runs.filter((run) => run.chunks[quality].some((v) => v !== null));
  const box = make("figure");
  if (!known.length) return box;
  const ys = known.flatMap((run) => run.chunks[quality].filter((v) => v !== null));
  const longest = Math.max(...known.map((run) => run.chunks[quality].length));
  const { svg, px, py } = frame([], ys, { whole: true, xmax: longest - 1, xtitle: "chunk", ytitle: TITLES[quality] });
  known.forEach((run) => {
    const points = run.chunks[quality].map((v, i) => [i, v]).filter(([, v]) => v !== null), look = curveLook(runs, run);
    svg.append(make("path", { d: points.map(([i, v], n) => `${n ? "L" : "M"}${px(i)},${py(v)}`).join(""), fill: "none", stroke: look.colour, "stroke-width": 1.6, "stroke-dasharray": dashes(look) }));
    for (const [i, v] of points) {
      const dot = mark(look, px(i), py(v), 3.5);
      dot.append(make("title", {}, `${run.label}, chunk ${i}: ${shown(v)}`));
      svg.append(dot);
    }
  });
  box.append(svg);
  return box;
}
const named = (run) => [run.label, ...run.where].join(", ");
// The colour and mark of its line; dashes, then hollow marks, tell the chosen runs of one line apart.
function curveLook(runs, run) {
  const place = runs.filter((one) => one.line === run.line).indexOf(run), count = data.dashes.length;
  return { ...run, key: null, dash: data.dashes[place % count], hollow: Math.floor(place / count) % 2 === 1 };
}

function details(runs) {
  const hint = () => make("p", { class: "faint" }, "No run chosen: click one in a plot or in the table.");
  byId("maps").replaceChildren(...(runs.length ? runs.map(heat) : [hint()]));
  byId("curves").replaceChildren(...["lpips", "psnr"].map((quality) => curve(runs, quality)));
  byId("curvelegend").replaceChildren(...runs.map((run) => key(curveLook(runs, run), named(run))));
  byId("provenance").replaceChildren(...runs.map((run) => {
    const box = make("details", {}, make("summary", {}, `${named(run)} (${run.signature})`));
    box.append(make("pre", {}, JSON.stringify(run.provenance, null, 1) + "\n" + JSON.stringify(data.protocols[run.protocol], null, 1)));
    return box;
  }));
  videos(runs);
}

const players = () => [...document.querySelectorAll("#videos video")];
function videos(runs) {
  stop();
  const kept = new Map([...byId("videos").children].map((node) => [node.dataset.key, node]));
  byId("videos").replaceChildren(...runs.filter((run) => run.clips.length).map((run) => kept.get(run.key) || gallery(run)));
  seek(0);
}
function gallery(run) {
  const box = make("section", { "data-key": run.key }, make("h3", {}, `${named(run)} (${run.signature})`)), cards = make("div", { class: "cards" });
  for (const clip of run.clips) {
    const card = make("figure", { class: "clip" });
    if (clip.src) {
      const video = make("video", { src: clip.src, playsinline: "", preload: "auto" });
      video.muted = true;
      video.addEventListener("loadedmetadata", () => where(leader()));
      card.append(video);
    } else card.append(clip.href ? make("a", { href: clip.href }, "over the budget: open the file") : make("span", { class: "faint" }, "no mp4 in the folder"));
    card.append(make("figcaption", {}, `${clip.place} (${clip.idx}): ${clip.prompt}; LPIPS ${shown(clip.lpips)}, PSNR ${shown(clip.psnr)}`));
    cards.append(card);
  }
  box.append(cards);
  return box;
}

// One clock for all videos: the longest leads, the others are set right where they drift.
const leader = () => players().reduce((a, b) => (!a || (b.duration || 0) > (a.duration || 0) ? b : a), null);
let playing = false;
function stop() {
  playing = false;
  byId("play").textContent = "play";
  for (const video of players()) video.pause();
}
function play() {
  if (!players().length) return;
  playing = true;
  byId("play").textContent = "pause";
  const lead = leader();
  if (lead.ended || lead.currentTime >= lead.duration - 0.01) seek(0);
  for (const video of players()) {
    video.playbackRate = Number(byId("rate").value);
    video.play().catch(() => {});
  }
  requestAnimationFrame(follow);
}
function follow() {
  const lead = leader();
  if (!playing || !lead) return;
  if (lead.ended) {
    seek(0);
    for (const video of players()) video.play().catch(() => {});
  }
  for (const video of players())
    if (video !== lead && !video.ended && Math.abs(video.currentTime - lead.currentTime) > 0.06) video.currentTime = lead.currentTime;
  where(lead);
  requestAnimationFrame(follow);
}
function seek(time) {
  for (const video of players()) video.currentTime = Math.min(Math.max(time, 0), video.duration || 0);
  where(leader());
}
function where(lead) {
  byId("seek").value = lead && lead.duration ? (1000 * lead.currentTime) / lead.duration : 0;
  byId("clock").textContent = lead ? `${lead.currentTime.toFixed(2)} s of ${(lead.duration || 0).toFixed(2)} s` : "";
}
const FRAME = 1 / 8; // of the run's mp4 files, seconds
byId("play").addEventListener("click", () => (playing ? stop() : play()));
byId("seek").addEventListener("input", (event) => { stop(); const lead = leader(); if (lead) seek((event.target.value / 1000) * lead.duration); });
byId("back").addEventListener("click", () => { stop(); const lead = leader(); if (lead) seek(lead.currentTime - FRAME); });
byId("ahead").addEventListener("click", () => { stop(); const lead = leader(); if (lead) seek(lead.currentTime + FRAME); });
byId("rate").addEventListener("change", () => { for (const video of players()) video.playbackRate = Number(byId("rate").value); });

const SAMPLING = ["sampler", "renoise", "store"];
function choose(index) {
  state.group = index;
  state.off = {};
  const filters = Object.entries(group().axes).map(([axis, values]) => {
    const box = make("span", { class: "axis" }, make("b", {}, axis));
    const ours = new Set(group().runs.filter((run) => run.sampling === group().sampling).map((run) => run.axes[axis]));
    state.off[axis] = new Set(SAMPLING.includes(axis) ? values.filter((value) => !ours.has(value)) : []); // one sampling at first
    for (const value of values) {
      const chip = make("button", { class: "chip", "aria-pressed": String(!state.off[axis].has(value)) }, value);
      chip.addEventListener("click", () => {
        const off = state.off[axis];
        if (!off.delete(value)) off.add(value);
        chip.setAttribute("aria-pressed", String(!off.has(value)));
        draw();
      });
      box.append(chip);
    }
    return box;
  });
  byId("filters").replaceChildren(...filters);
  for (const chip of document.querySelectorAll("#protocols .chip")) chip.setAttribute("aria-pressed", String(Number(chip.value) === index));
  chooseFront();
}
function chooseFront() {
  const runs = compared(visible());
  const best = fronts(runs, "forward_fraction", "lpips"), all = best.length ? best : fronts(runs, "forward_fraction", "psnr");
  const place = (run) => [run.sampling, run.rank.forward_fraction, run.rank[best.length ? "lpips" : "psnr"]].join();
  const first = new Map([...all].reverse().map((run) => [place(run), run])); // one of each tie
  state.chosen = new Set([...first.values()].reverse().slice(-8).map((run) => run.key));
  draw();
}
if (data.groups.length > 1) {
  byId("protocols").append(make("b", {}, "protocol "));
  data.groups.forEach((one, i) => {
    const chip = make("button", { class: "chip", value: i }, `${one.told} (${one.runs.length})`);
    chip.addEventListener("click", () => choose(i));
    byId("protocols").append(chip);
  });
}
byId("front").addEventListener("click", chooseFront);
byId("none").addEventListener("click", () => { state.chosen.clear(); draw(); });
byId("log").addEventListener("change", (event) => { state.log = event.target.checked; draw(); });
for (const row of document.querySelectorAll("#runs tbody tr")) row.addEventListener("click", () => toggle(row.dataset.key));
for (const head of document.querySelectorAll("#runs th")) {
  head.addEventListener("click", () => {
    const index = [...head.parentNode.children].indexOf(head), body = document.querySelector("#runs tbody");
    const up = head.dataset.up !== "yes";
    head.dataset.up = up ? "yes" : "no";
    const value = (row) => { const text = row.children[index].dataset.value ?? row.children[index].textContent, n = parseFloat(text); return isNaN(n) ? text : n; };
    const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
    body.replaceChildren(...[...body.children].sort((a, b) => (up ? 1 : -1) * compare(value(a), value(b))));
  });
}
choose(0);
