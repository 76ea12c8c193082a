"use strict";
// A click on a heading sorts by it; a second click turns the order round.
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const heading = button.parentElement, table = heading.closest("table"), body = table.tBodies[0];
    const column = heading.cellIndex, down = heading.getAttribute("aria-sort") === "ascending";
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
  });
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
  const points = [...picture.querySelectorAll(".point")];
  picture.addEventListener("keydown", (event) => {
    const here = points.indexOf(document.activeElement), last = points.length - 1;
    const steps = { ArrowRight: here + 1, ArrowDown: here + 1, ArrowLeft: here - 1, ArrowUp: here - 1, Home: 0, End: last };
    if (here < 0 || !(event.key in steps)) return;
    event.preventDefault();
    const next = points[Math.min(Math.max(steps[event.key], 0), last)];
    points[here].tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
}
