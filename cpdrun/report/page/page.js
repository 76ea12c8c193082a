"use strict";
// What is filtered and sorted stands in the address's fragment, #by.format=e4m3&sort=5,descending: so that a link has it.
const filters = document.getElementById("filters"), means = document.getElementById("means");
const axes = [...filters.querySelectorAll(".axis")].map((box) => ({
  box, name: box.dataset.axis, column: Number(box.dataset.column), ticks: [...box.querySelectorAll("input")],
}));
const grouped = [...document.querySelectorAll("figure [data-group]")];
const naming = [...document.querySelectorAll("figure [data-names]")];
const isState = () => location.hash.includes("=");
const remember = () => {
  const state = new URLSearchParams();
  for (const { name, ticks } of axes) {
    for (const tick of ticks) if (tick.checked) state.append("by." + name, tick.value);
  }
  if (filters.words.value.trim()) state.set("words", filters.words.value.trim());
  const sorted = means.querySelector("th[aria-sort]");
  if (sorted) state.set("sort", sorted.cellIndex + "," + sorted.getAttribute("aria-sort"));
  if (state.size || isState()) history.replaceState(null, "", state.size ? "#" + state : location.pathname + location.search);
};
const filter = () => {
  const words = filters.words.value.toLowerCase().split(/\s+/).filter(Boolean), shown = new Set();
  const chosen = axes.map(({ box, column, ticks }) => {
    const values = new Set(ticks.filter((tick) => tick.checked).map((tick) => tick.value));
    box.querySelector(".chosen").textContent = values.size ? [...values].join(", ") : "all";
    return { column, values };
  });
  for (const row of means.tBodies[0].rows) {
    const text = [...row.cells].map((cell) => cell.textContent.toLowerCase()).join(" ");
    const cells = chosen.every(({ column, values }) => !values.size || values.has(row.cells[column].textContent));
    row.hidden = !(cells && words.every((word) => text.includes(word)));
    if (!row.hidden) shown.add(row.dataset.group);
  }
  const isFiltered = words.length > 0 || chosen.some(({ values }) => values.size);
  for (const row of document.querySelectorAll("#runs tbody tr")) row.hidden = isFiltered && !shown.has(row.dataset.group);
  for (const part of grouped) {
    part.classList.toggle("out", !part.dataset.group.split(" ").every((group) => shown.has(group)));
  }
  for (const name of naming) name.classList.toggle("out", !name.dataset.names.split(" ").some((group) => shown.has(group)));
  for (const picture of document.querySelectorAll("figure svg")) stop(picture);
  filters.querySelector("output").textContent = `${shown.size} of ${means.tBodies[0].rows.length} rows`;
  filters.classList.toggle("active", isFiltered);
};
// The one point of a picture that the tabulator stops at is one that is not filtered out.
const stop = (picture, at) => {
  const points = [...picture.querySelectorAll(".point")], able = points.filter((point) => !point.classList.contains("out"));
  const next = at ?? able.find((point) => point.tabIndex === 0) ?? able[0];
  for (const point of points) point.tabIndex = point === next ? 0 : -1;
};
filters.addEventListener("input", () => { filter(); remember(); });
filters.addEventListener("submit", (event) => event.preventDefault());
filters.addEventListener("reset", () => setTimeout(() => { filter(); remember(); }));
filters.addEventListener("keydown", (event) => {
  const open = event.target.closest("details[open]");
  if (event.key !== "Escape" || !open) return;
  open.open = false;
  open.querySelector("summary").focus();
});
document.addEventListener("click", (event) => {
  for (const { box } of axes) if (!box.contains(event.target)) box.open = false;
});
// A click on a heading sorts by it; a second click turns the order round.
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const heading = button.parentElement;
    sort(heading, heading.getAttribute("aria-sort") === "ascending");
    remember();
  });
}
function sort(heading, down) {
  const table = heading.closest("table"), body = table.tBodies[0];
  const column = heading.cellIndex;
  const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
  const number = (text) => (text === "" ? NaN : Number(text));
  const compare = (a, b) => {
    const x = value(a), y = value(b), i = number(x), j = number(y);
    if (Number.isNaN(i) && Number.isNaN(j)) return x.localeCompare(y, undefined, { numeric: true });
    if (Number.isNaN(i)) return down ? -1 : 1; // rows without a number stay last
    if (Number.isNaN(j)) return down ? 1 : -1;
    return i - j;
  };
  const rows = [...body.rows].sort((a, b) => (down ? compare(b, a) : compare(a, b)));
  for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  body.append(...rows);
}
// What a point stands for, beside the pointer or, for the keyboard, beside the point.
const tip = document.getElementById("tip");
const show = (point, x, y) => {
  tip.textContent = point.dataset.tip;
  tip.style.display = "block";
  tip.style.left = Math.min(x + 14, innerWidth - tip.offsetWidth - 8) + "px";
  tip.style.top = Math.max(y - tip.offsetHeight - 10, 8) + "px";
};
const hide = () => { tip.style.display = "none"; };
for (const point of document.querySelectorAll(".point")) {
  point.addEventListener("pointermove", (event) => show(point, event.clientX, event.clientY));
  point.addEventListener("pointerleave", hide);
  point.addEventListener("focus", () => {
    const box = point.getBoundingClientRect();
    show(point, box.right, box.top);
  });
  point.addEventListener("blur", hide);
}
// A picture is one stop of the tabulator; arrow keys, Home and End go from point to point.
for (const picture of document.querySelectorAll("figure svg")) {
  picture.addEventListener("keydown", (event) => {
    const points = [...picture.querySelectorAll(".point:not(.out)")];
    const here = points.indexOf(document.activeElement), last = points.length - 1;
    const steps = { ArrowRight: here + 1, ArrowDown: here + 1, ArrowLeft: here - 1, ArrowUp: here - 1, Home: 0, End: last };
    if (here < 0 || !(event.key in steps)) return;
    event.preventDefault();
    const next = points[Math.min(Math.max(steps[event.key], 0), last)];
    stop(picture, next);
    next.focus();
  });
}
const restore = () => {
  const state = new URLSearchParams(isState() ? location.hash.slice(1) : "");
  for (const { name, ticks } of axes) {
    const values = state.getAll("by." + name);
    for (const tick of ticks) tick.checked = values.includes(tick.value);
  }
  filters.words.value = state.get("words") ?? "";
  const [column, order] = (state.get("sort") ?? "").split(","), heading = means.tHead.rows[0].cells[parseInt(column)];
  if (heading) sort(heading, order === "descending");
  filter();
};
addEventListener("hashchange", () => { if (isState()) restore(); });
filters.hidden = false;
restore();
