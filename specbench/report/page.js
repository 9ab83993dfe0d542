"use strict";

/** What a row is sorted by in a column: the number of its cell, or the text if it has none. */
function sortKey(row, column) {
  const cell = row.cells[column];
  return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
}

/** Numbers by size, texts by alphabet, every number before every text in both directions. */
function compare(a, b, sign) {
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return sign * (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
}

function sortBy(table, header) {
  const ascending = header.getAttribute("aria-sort") === "descending";
  for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
  header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  const sign = ascending ? 1 : -1;
  const body = table.tBodies[0];
  const keyed = [...body.rows].map((row) => [sortKey(row, header.cellIndex), row]);
  keyed.sort((a, b) => compare(a[0], b[0], sign));
  body.append(...keyed.map(([, row]) => row));
}

/** Show the rows that hold every word of the filter. */
function filter(table, text, output) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of table.tBodies[0].rows) {
    const content = row.innerText.toLowerCase() || row.textContent.toLowerCase();
    row.hidden = !words.every((word) => content.includes(word));
    shown += row.hidden ? 0 : 1;
  }
  const all = table.tBodies[0].rows.length;
  output.textContent = shown === all ? `${all} rows` : `${shown} of ${all} rows`;
}

for (const grid of document.querySelectorAll(".grid")) {
  const table = grid.querySelector("table");
  for (const header of table.tHead.rows[0].cells)
    header.querySelector("button").addEventListener("click", () => sortBy(table, header));
  const output = grid.querySelector("output");
  grid.querySelector("input").addEventListener("input", (event) =>
    filter(table, event.target.value, output));
}
