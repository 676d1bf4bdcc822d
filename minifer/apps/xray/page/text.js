// Text and numbers as people read them, and elements made without markup.
//
// Token text is hostile until proven otherwise: it may hold tags, controls that turn the direction of writing, or
// nothing visible at all. It only ever becomes a text node, and what cannot be seen is spelled out.

const INVISIBLE = /[\u0000-\u001f\u007f-\u00a0\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ufff9-\ufffc\ufe00-\ufe0f\ud800-\udfff]/gu;
const SIGNS = { "\n": "\u21b5", "\t": "\u21e5", "\r": "\u240d" };

/** The text with every invisible character made visible, and a dot for a space at either end. */
function visible(text) {
  const shown = String(text).replace(INVISIBLE, (c) => SIGNS[c]
    ?? `\u27e8U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}\u27e9`);
  return shown.replace(/^ +| +$/g, (spaces) => "\u00b7".repeat(spaces.length)) || "\u2205";
}

/** An element: `el("p", {class: "x", onclick: f}, "text", child)`. Strings become text nodes, never markup. */
function el(tag, properties = {}, ...children) {
  const node = document.createElementNS(tag.startsWith("svg:") ? "http://www.w3.org/2000/svg"
    : "http://www.w3.org/1999/xhtml", tag.replace("svg:", ""));
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

const byId = (id) => document.getElementById(id);

/** Three digits, thousands with commas. */
function three(value) {
  if (!Number.isFinite(value)) return "\u2013";
  const size = Math.abs(value);
  if (size >= 100) return Math.round(value).toLocaleString("en");
  if (size === 0) return "0";
  return String(Number(value.toPrecision(3)));
}

const UNITS = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [0, ""]];

/** 538064512 bytes -> "538 MB". */
function withUnit(value, unit) {
  const [scale, prefix] = UNITS.find(([limit]) => Math.abs(value) >= limit);
  return `${three(value / (scale || 1))} ${prefix}${unit}`;
}

/** Milliseconds, or seconds where that reads better. */
function duration(ms) {
  return ms >= 10000 ? `${three(ms / 1000)} s` : `${three(ms)} ms`;
}

/** "1 token", "2 tokens". */
function count(number, word) {
  return `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
}

/** "a, b and c"; at most `limit` of them. */
function list(words, limit = 4) {
  if (words.length > limit) return `${words.slice(0, limit - 1).join(", ")} and ${words.length - limit + 1} more`;
  return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}

function median(values) {
  if (!values.length) return NaN;
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

const sum = (values) => values.reduce((a, b) => a + b, 0);

/** A table with a caption; rows are arrays of strings, or functions of nothing that make them when they are needed. */
function table(caption, heads, rows) {
  const cells = (row, tag) => row.map((cell, i) => el(i === 0 && tag === "td" ? "th" : tag,
    { scope: tag === "th" ? "col" : i === 0 ? "row" : null }, cell instanceof Node ? cell : String(cell)));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, el("table", {},
    el("caption", {}, caption),
    el("thead", {}, el("tr", {}, cells(heads, "th"))),
    el("tbody", {}, rows.map((row) => el("tr", {}, cells(row, "td"))))));
}
