// One step and one request are chosen; every pane shows them. Everything else is wiring.

const data = JSON.parse(byId("data").textContent);
const state = { runs: [], maps: [], shown: 0, step: 0, life: null, follow: true, playing: null };
const panes = {};
const NOW_ROWS = 24;
const reduced = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

const run = () => state.runs[state.shown];
const blocks = () => state.maps[state.shown];

function setRuns(runs) {
  state.runs = runs;
  state.maps = runs.map((one) => new Blocks(one));
}

/** Go to a step, and perhaps to another request. Numbers out of range go to the nearest end. */
function goTo(step, life = state.life) {
  if (!run()?.steps.length) return;
  state.step = Math.max(0, Math.min(run().steps.length - 1, step));
  if (life && life !== state.life) {
    state.life = life;
    byId("request").value = String(life.index);
  }
  state.follow = state.step === run().steps.length - 1;
  refreshStep();
}

function refreshStep() {
  const step = run().steps[state.step];
  const slider = byId("slider");
  slider.max = String(run().steps.length - 1);
  slider.value = String(state.step);
  const sentence = stepSentence(run(), step);
  slider.setAttribute("aria-valuetext", `step ${state.step + 1} of ${run().steps.length}`);
  byId("sentence").textContent = sentence;
  byId("clock").textContent = `${state.step + 1} / ${run().steps.length} \u00b7 ${duration(step.end)}`;
  panes.timeline.mark(state.step, state.life, true);
  panes.lines.forEach((line) => line.run && line.mark(line.run.stepAt(step.end - 1e-6), null, false));
  if (state.life) {
    panes.strip.show(run(), state.life, state.step);
    const seen = `${state.shown} ${state.life.id} ${state.life.times.length} ${byId("brackets").clientWidth}`;
    if (panes.bracketed !== seen) Object.assign(panes, { bracketed: seen, markBracket: drawBrackets(byId("brackets"), run(), state.life) });
    panes.markBracket(step);
  }
  panes.map.show(run(), blocks(), state.step);
  panes.roof.show(run(), step, data.ceilings);
  drawLogits(byId("logits"), byId("logits-note"), run(), step, state.life);
  drawNow(step);
  for (const details of document.querySelectorAll("details.numbers[open]")) fillTable(details);
}

/** The step as a small table: who ran, what went in, what came out. */
function drawNow(step) {
  const out = new Map(step.tokens.map(([life, token]) => [life, token]));
  byId("now").replaceChildren(table(`What step ${step.index + 1} ran`, ["request", "phase", "tokens in", "positions", "token out"],
    step.seqs.slice(0, NOW_ROWS).map((one) => [run().lives[one.life].id, one.prefill ? "prefill" : "decode", one.count,
      one.count > 1 ? `${one.first} to ${one.first + one.count - 1}` : one.first,
      out.has(one.life) ? el("bdi", { class: "token" }, run().word(out.get(one.life))) : "none yet"])),
  step.seqs.length > NOW_ROWS ? el("p", { class: "legend" }, `and ${step.seqs.length - NOW_ROWS} more`) : "");
}

const TABLES = {
  timeline: () => table("Every request", ["request", "its id", "arrived", "queue", "first token", "median gap", "tokens", "found in cache", "thrown out", "end"],
    run().lives.slice(0, 2000).map((life) => [life.id, visible(life.key), duration(life.arrival), run().queue(life) === null ? "" : duration(run().queue(life)),
      run().ttft(life) === null ? "" : duration(run().ttft(life)), life.times.length > 1 ? duration(median(run().itl(life))) : "", life.tokens.length,
      run().cached(life), life.preempted.length, life.reason ?? "running"])),
  strip: () => panes.strip.table(),
  map: () => panes.map.table(),
  roof: () => panes.roof.table(),
  logits: () => {
    const draws = Object.entries(run().steps[state.step].draws);
    return table("Candidates of every token drawn in this step", ["request", "token", "model", "after the cut", "drawn"],
      draws.flatMap(([id, draw]) => draw.top.map(([token, p, after]) => [run().known.get(id).id, el("bdi", {}, run().word(token)), `${three(100 * p)} %`,
        `${three(100 * after)} %`, token === draw.drawn ? "yes" : ""])));
  },
};

function fillTable(details) {
  details.querySelector(".filled").replaceChildren(TABLES[details.dataset.table]());
}

/** Go to a step, and to the pane in which it can be seen; the keyboard goes along. */
function lookAt(story) {
  goTo(story.step);
  const heading = byId(story.pane);
  heading.scrollIntoView();
  heading.focus({ preventScroll: true });
}

function drawStories() {
  byId("stories").replaceChildren(...stories(run(), blocks(), data.ceilings).map((story, i) => el("article", { class: "story" },
    el("h3", {}, el("span", { class: "number", "aria-hidden": "true" }, i + 1), story.question), el("p", {}, story.answer), story.more ? el("p", {}, story.more) : null,
    story.step === undefined ? null : el("button", { type: "button", class: "quiet", onclick: () => lookAt(story) }, `Show step ${story.step + 1} ${story.where}`))));
  const rows = dialogue(run());
  const more = run().lives.length - rows.length;
  byId("dialogue").replaceChildren(...rows.map((row) => el("li", {}, el("b", {}, row.id),
    row.question ? [" asked ", el("bdi", {}, `\u201c${row.question}\u201d`)] : [],
    row.answer ? [row.question ? " and got " : " answered ", el("bdi", {}, `\u201c${row.answer}\u201d`)] : [])),
  rows.length && more > 0 ? el("li", {}, `and ${count(more, "more request")}`) : "");
}

/** What does not change with the step: title, choices, answers, timeline. */
function refreshRun() {
  const about = run().about;
  byId("model").textContent = visible(String(about.model ?? "a recorded run"));
  byId("facts").textContent = [`${count(run().lives.length, "request")}, ${count(run().steps.length, "step")}, ${duration(run().end)}`,
    about.scheduler === "StaticScheduler" ? "static batching" : run().label === "live" ? null : run().label,
    about.simulated ? `simulated on ${about.machine}` : null, about.cpu, about.room ? `${about.room} room` : null].filter(Boolean).map((text) => visible(String(text))).join(" \u00b7 ");
  byId("real").textContent = about.simulated ? "a simulated run" : "a real run";
  const known = state.life ? run().known.get(state.life.key) : null;
  state.life = known ?? run().lives.find((life) => life.times.length > 1) ?? run().lives[0] ?? null;
  byId("request").replaceChildren(...run().lives.map((life) => el("option", { value: life.index, selected: life === state.life }, life.id)));
  state.step = Math.min(state.step, run().steps.length - 1);
  if (run().steps.length > 1) panes.timeline.show(run()); else panes.timeline.show(run());
  drawStories();
  if (document.body.classList.contains("quizzing") && !data.live) drawQuiz(byId("quiz"), quizOf(run(), blocks(), data.ceilings), lookAt);
  refreshStep();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
  if (!run()) return;
  panes.timeline.colours = colours();
  panes.lines.forEach((line) => { line.colours = colours(); line.surface.ask(); });
  refreshStep();
}

function play() {
  const stop = state.playing !== null;
  if (stop) clearInterval(state.playing);
  state.playing = stop ? null : setInterval(() => {
    if (state.step + 1 >= run().steps.length) play(); else goTo(state.step + 1);
  }, reduced() ? 1500 : 450);
  if (!stop && state.step + 1 >= run().steps.length) goTo(0);
  byId("sentence").setAttribute("aria-live", stop ? "polite" : "off");
  byId("play").textContent = stop ? "Play" : "Pause";
  byId("play").setAttribute("aria-pressed", String(!stop));
}

function wireScrubber() {
  // A dragged slider speaks more often than a screen can be drawn: only its last word before a frame counts.
  let wanted = null;
  byId("slider").addEventListener("input", (event) => {
    if (wanted === null) requestAnimationFrame(() => { goTo(wanted); wanted = null; });
    wanted = Number(event.target.value);
  });
  byId("play").addEventListener("click", play);
  byId("back").addEventListener("click", () => goTo(state.step - 1));
  byId("forth").addEventListener("click", () => goTo(state.step + 1));
  byId("request").addEventListener("change", (event) => goTo(state.step, run().lives[Number(event.target.value)]));
  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, select, textarea, [role=region]") || event.ctrlKey || event.altKey || event.metaKey) return;
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
    if (!(event.key in moves)) return;
    event.preventDefault();
    goTo(state.step + moves[event.key]);
  });
}

function wireTimeline() {
  for (const radio of document.querySelectorAll("input[name=rows]")) {
    radio.addEventListener("change", () => { panes.timeline.kind = radio.value; panes.timeline.show(run()); refreshStep(); });
  }
  const zoom = (factor) => {
    panes.timeline.zoom = factor ? Math.max(1, Math.min(4096, panes.timeline.zoom * factor)) : 1;
    panes.timeline.layout();
    panes.timeline.mark(state.step, state.life, true);
  };
  byId("zoomin").addEventListener("click", () => zoom(2));
  byId("zoomout").addEventListener("click", () => zoom(0.5));
  byId("zoomfit").addEventListener("click", () => zoom(0));
}

function wireRest() {
  byId("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  byId("export").addEventListener("click", () => download("minifer-trace.json", JSON.stringify(perfettoEvents(run()))));
  byId("quizzer").addEventListener("click", (event) => {
    const on = document.body.classList.toggle("quizzing");
    event.target.setAttribute("aria-pressed", String(on));
    event.target.textContent = on ? "Show the answers" : "Predict first";
    if (on) drawQuiz(byId("quiz"), quizOf(run(), blocks(), data.ceilings), lookAt);
  });
  for (const radio of document.querySelectorAll("input[name=run]")) {
    radio.addEventListener("change", () => { state.shown = Number(radio.value); refreshRun(); });
  }
  for (const details of document.querySelectorAll("details.numbers")) {
    details.addEventListener("toggle", () => { if (details.open && run()) fillTable(details); });
  }
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width || !run()) return;
    width = innerWidth;
    panes.timeline.layout();
    panes.lines.forEach((line) => line.run && line.layout());
    refreshStep();
  });
}

function start() {
  panes.timeline = new Timeline(byId("timeline"), (step, life) => goTo(step, life ?? state.life));
  panes.strip = new Strip(byId("strip"), byId("strip-note"), goTo);
  panes.map = new BlockMap(byId("map"), byId("map-note"));
  panes.roof = new Roof(byId("roof"), byId("roof-note"));
  panes.lines = [];
  wireScrubber();
  wireTimeline();
  wireRest();
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  if (data.live) return startLive();
  setRuns(data.runs.map((one) => new Run(one.label, one.records)));
  if (!run()?.steps.length) {
    byId("facts").textContent = "This trace holds no steps.";
    return;
  }
  document.body.classList.add("ready");
  refreshRun();
  if (state.runs.length > 1) startCompare();
}

function startCompare() {
  document.body.classList.add("comparing");
  byId("name-a").textContent = `A: ${state.runs[0].label}`;
  byId("name-b").textContent = `B: ${state.runs[1].label}`;
  byId("line-a-name").textContent = `A: ${state.runs[0].label}`;
  byId("line-b-name").textContent = `B: ${state.runs[1].label}`;
  panes.lines = ["line-a", "line-b"].map((id, i) => new Timeline(byId(id), (step) => {
    state.shown = i;
    document.querySelectorAll("input[name=run]")[i].checked = true;
    refreshRun();
    goTo(step);
  }));
  drawCompare(byId("compare"), byId("compare-note"), state.runs, state.maps, panes.lines);
  refreshStep();
}

function startLive() {
  document.body.classList.add("live");
  byId("facts").textContent = "Nothing has run yet. Ask something below, and watch it.";
  const live = new Live((fresh) => {
    const follow = state.follow || !run();
    setRuns([fresh]);
    document.body.classList.add("ready");
    if (follow) state.step = fresh.steps.length - 1;
    refreshRun();
    state.follow = follow;
  }, (text) => { byId("livestatus").textContent = text; });
  byId("chat").addEventListener("submit", (event) => {
    event.preventDefault();
    const box = byId("message");
    if (box.value.trim()) live.chat(box.value.trim(), byId("log"));
    box.value = "";
  });
  for (const id of ["replica", "apikey"]) {
    byId(id).addEventListener("change", () => live.turnTo(Math.max(0, Number(byId("replica").value) || 0)));
  }
  byId("latest").addEventListener("click", () => goTo(Infinity));
  live.listen();
}

start();
// For tests, and for whoever opens the console.
window.minifer = { state, panes, work, goTo, stories: () => stories(run(), blocks(), data.ceilings), usage: (step) => blocks().usage(blocks().at(step)), perfetto: () => perfettoEvents(run()) };
