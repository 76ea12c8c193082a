"use strict";
// Sort and filter the tables, fade what is filtered out of the pictures, and show what a point stands for. While a sweep
// runs, replace the contents of the page when a run has ended.
//
// What is sorted and filtered is in `state` and in the address, so that a link contains it:
//   by.AXIS=VALUE              a value that is ticked in the list of an axis
//   words=WORDS                words that a row of the table of means must contain
//   where.TABLE.HEADING=TEXT   the filter of a column
//   sort.TABLE=ORDER HEADING   the column by which a table is sorted; ORDER is ascending or descending
const find = (selector, root = document) => root.querySelector(selector);
const findAll = (selector, root = document) => [...root.querySelectorAll(selector)];
const isState = () => location.hash.includes("=");
const readAddress = () => new URLSearchParams(isState() ? location.hash.slice(1) : "");
let state = readAddress();

function change(edit) {
  edit(state);
  if (state.size || isState()) {
    history.replaceState(null, "", state.size ? "#" + state : location.pathname + location.search);
  }
  apply();
}

// The tables.
const tables = () => findAll(".wide > table");
const rowsOf = (table) => [...table.tBodies[0].rows];
const headingsOf = (table) => [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
const inputsOf = (table) => findAll(".columns input", table);
const toNumber = (text) => (text.trim() === "" ? NaN : Number(text.replace(/[,\u202f]/g, "").replace("\u2212", "-")));
const numberOf = (cell) => toNumber(cell.dataset.value ?? cell.textContent);

function sortTable(table) {
  const [order, ...words] = (state.get("sort." + table.id) ?? "").split(" ");
  const headings = headingsOf(table), column = headings.indexOf(words.join(" "));
  [...table.tHead.rows[0].cells].forEach((cell, i) => {
    if (i === column) cell.setAttribute("aria-sort", order === "descending" ? "descending" : "ascending");
    else cell.removeAttribute("aria-sort");
  });
  if (column < 0 || table.dataset.sorted === order + column) return;
  const sign = order === "descending" ? -1 : 1;
  const compare = (a, b) => {
    const x = numberOf(a.cells[column]), y = numberOf(b.cells[column]);
    const [s, t] = [a, b].map((row) => row.cells[column].textContent);
    if (Number.isNaN(x) && Number.isNaN(y)) return sign * s.localeCompare(t, undefined, { numeric: true });
    if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) ? 1 : -1; // Rows without a number stay last.
    return sign * (x - y);
  };
  table.tBodies[0].append(...rowsOf(table).sort(compare));
  table.dataset.sorted = order + column;
}

// Return a function that says whether a cell passes a filter, such as "e4m3", "> 98" or "<= 0.5".
function test(text) {
  const [, sign, limit] = /^\s*(<=|>=|<|>|=)\s*(.+)$/.exec(text) ?? [];
  const y = toNumber(limit ?? "");
  if (Number.isNaN(y)) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    return (cell) => words.every((word) => cell.textContent.toLowerCase().includes(word));
  }
  const passes = { "<": (x) => x < y, ">": (x) => x > y, "<=": (x) => x <= y, ">=": (x) => x >= y, "=": (x) => x === y }[sign];
  return (cell) => passes(numberOf(cell));
}

function columnTests(table) {
  const headings = headingsOf(table);
  return inputsOf(table).flatMap((input, i) => {
    const text = state.get(`where.${table.id}.${headings[i]}`) ?? "";
    if (input.value.trim() !== text) input.value = text;
    const passes = test(text);
    return text.trim() ? [(row) => passes(row.cells[i])] : [];
  });
}

// The list of each axis, and the words, filter the table of means.
function formTests(form) {
  const tests = findAll(".axis", form).flatMap((box) => {
    const values = new Set(state.getAll("by." + box.dataset.axis)), column = Number(box.dataset.column);
    for (const tick of findAll("input", box)) tick.checked = values.has(tick.value);
    find(".chosen", box).textContent = values.size ? [...values].join(", ") : "all";
    return values.size ? [(row) => values.has(row.cells[column].textContent)] : [];
  });
  const typed = state.get("words") ?? "", words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  if (form.words.value.trim() !== typed) form.words.value = typed;
  const text = (row) => [...row.cells].map((cell) => cell.textContent.toLowerCase()).join(" ");
  return words.length ? [...tests, (row) => words.every((word) => text(row).includes(word))] : tests;
}

// Make the page show what `state` says.
function apply() {
  const form = find("#filters");
  if (form === null) return;
  form.hidden = false;
  for (const row of findAll("tr.columns")) row.hidden = false;
  const means = find("#means"), groups = new Set();
  const ofMeans = [...formTests(form), ...columnTests(means)];
  for (const row of rowsOf(means)) {
    row.hidden = !ofMeans.every((passes) => passes(row));
    if (!row.hidden) groups.add(row.dataset.group);
  }
  for (const table of tables()) {
    sortTable(table);
    if (table === means) continue;
    const tests = columnTests(table);
    if (table.id === "runs" && ofMeans.length) tests.push((row) => groups.has(row.dataset.group));
    for (const row of rowsOf(table)) row.hidden = !tests.every((passes) => passes(row));
  }
  for (const part of findAll("figure [data-group]")) {
    part.classList.toggle("out", !part.dataset.group.split(" ").every((group) => groups.has(group)));
  }
  for (const name of findAll("figure [data-names]")) {
    name.classList.toggle("out", !name.dataset.names.split(" ").some((group) => groups.has(group)));
  }
  for (const picture of findAll("figure svg")) stop(picture);
  find("output", form).textContent = `${groups.size} of ${rowsOf(means).length} rows`;
  form.classList.toggle("active", ofMeans.length > 0);
}

document.addEventListener("input", ({ target }) => {
  const box = target.closest(".axis"), table = target.closest("table");
  change((state) => {
    if (box !== null) {
      const key = "by." + box.dataset.axis;
      state.delete(key);
      for (const tick of findAll("input", box)) if (tick.checked) state.append(key, tick.value);
      return;
    }
    const key = table === null ? "words" : `where.${table.id}.${headingsOf(table)[inputsOf(table).indexOf(target)]}`;
    if (target.value.trim()) state.set(key, target.value.trim());
    else state.delete(key);
  });
});
document.addEventListener("submit", (event) => event.preventDefault());
document.addEventListener("reset", () => change((state) => {
  for (const key of [...state.keys()]) if (!key.startsWith("sort.")) state.delete(key);
}));
document.addEventListener("click", ({ target }) => {
  for (const box of findAll(".axis")) if (!box.contains(target)) box.open = false;
  const heading = target.closest("th");
  if (heading === null) return;
  const table = heading.closest("table");
  const order = heading.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  change((state) => state.set("sort." + table.id, `${order} ${heading.textContent}`));
});
document.addEventListener("keydown", (event) => {
  const open = event.target.closest?.(".axis[open]");
  if (event.key === "Escape" && open) {
    open.open = false;
    find("summary", open).focus();
  }
});
addEventListener("hashchange", () => {
  if (!isState()) return;
  state = readAddress();
  apply();
});

// The pictures. What a point stands for is shown next to the pointer, or next to the point for the keyboard.
const tip = find("#tip");
const pointAt = (target) => target.closest?.(".point");
const hideTip = () => { tip.style.display = "none"; };
function showTip(point, x, y) {
  tip.textContent = point.dataset.tip;
  tip.style.display = "block";
  tip.style.left = Math.min(x + 14, innerWidth - tip.offsetWidth - 8) + "px";
  tip.style.top = Math.max(y - tip.offsetHeight - 10, 8) + "px";
}
document.addEventListener("pointermove", (event) => {
  const point = pointAt(event.target);
  if (point) showTip(point, event.clientX, event.clientY);
  else if (!pointAt(document.activeElement)) hideTip();
});
document.addEventListener("focusin", ({ target }) => {
  if (!pointAt(target)) return;
  const box = target.getBoundingClientRect();
  showTip(target, box.right, box.top);
});
document.addEventListener("focusout", hideTip);
// The tab key stops at one point of each picture. The arrow keys, Home and End go from point to point.
function stop(picture, at) {
  const able = findAll(".point:not(.out)", picture);
  const next = at ?? able.find((point) => point.tabIndex === 0) ?? able[0];
  for (const point of findAll(".point", picture)) point.tabIndex = point === next ? 0 : -1;
}
document.addEventListener("keydown", (event) => {
  const picture = event.target.closest?.("figure svg");
  if (!picture) return;
  const points = findAll(".point:not(.out)", picture), here = points.indexOf(event.target), last = points.length - 1;
  const steps = { ArrowRight: here + 1, ArrowDown: here + 1, ArrowLeft: here - 1, ArrowUp: here - 1, Home: 0, End: last };
  if (here < 0 || !(event.key in steps)) return;
  event.preventDefault();
  const next = points[Math.min(Math.max(steps[event.key], 0), last)];
  stop(picture, next);
  next.focus();
});

// A page from `cpdrun report --serve` asks for changes. `state` keeps the order of rows and the filters.
const live = find("#live"), EVERY_MS = 3000;
function replaceContents(fresh) {
  const open = findAll("main details[open]").map((details) => details.id);
  const focused = document.activeElement?.id, selection = document.activeElement?.selectionStart;
  const scrolled = findAll("main .wide, main pre").map((area) => [area.id, area.scrollLeft, area.scrollTop]);
  // What the reader sees first stays in its place, even if the page above it becomes longer.
  const anchor = findAll("main [id]").findLast((part) => part.checkVisibility() && part.getBoundingClientRect().top <= 1);
  const top = anchor?.getBoundingClientRect().top, name = anchor?.id, scroll = scrollY;
  hideTip();
  document.title = fresh.title;
  find("#colors").textContent = find("#colors", fresh).textContent;
  find("main").replaceChildren(...find("main", fresh).childNodes);
  live.dataset.version = find("#live", fresh).dataset.version;
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  apply();
  for (const [id, left, down] of scrolled) document.getElementById(id)?.scrollTo(left, down);
  const now = name && document.getElementById(name);
  scrollTo(0, now ? scrollY + now.getBoundingClientRect().top - top : scroll);
  const field = focused && document.getElementById(focused);
  field?.focus({ preventScroll: true });
  if (field && selection !== null && selection !== undefined) field.setSelectionRange(selection, selection);
}
async function refresh() {
  setTimeout(refresh, EVERY_MS);
  if (document.hidden) return;
  try {
    const headers = { "If-None-Match": `"${live.dataset.version}"` };
    const answer = await fetch("/", { cache: "no-store", headers });
    if (answer.status === 200) replaceContents(new DOMParser().parseFromString(await answer.text(), "text/html"));
    live.textContent = answer.ok || answer.status === 304 ? "" : "The runs could not be read. This page tries again.";
  } catch {
    live.textContent = "cpdrun report --serve has ended. This page shows its last report.";
  }
}
apply();
if (live !== null) setTimeout(refresh, EVERY_MS);
