// Sorts, filters and searches the rows of a page's tables, and hides their columns.
//
// The part of the address after # holds what is chosen, so that a link shows the same rows:
//
//   #find=parcel+score@64>70&hide=seeds&sort.0=2-
//     rows with the word "parcel" and more than 70 in column "score @64"; without column "seeds";
//     the first table by its third column, the largest first
//
// Pages read without this script. It builds all that needs it, writes text only, and loads nothing.
"use strict";

const tables = [...document.querySelectorAll("table.data")].map((table) => {
  const [head, ...rows] = table.rows;
  const names = [...head.cells].map((th) => th.textContent.trim());
  return { head, rows, names, keys: names.map((name) => name.toLowerCase().replaceAll(" ", "")) };
});
const names = [...new Set(tables.flatMap((table) => table.names))].filter(Boolean);

const chosen = () => new URLSearchParams(location.hash.slice(1));

function choose(change) {
  const state = chosen();
  change(state);
  for (const [name, value] of [...state]) if (!value) state.delete(name);
  history.replaceState(null, "", `#${state}`);
  show();
}

// The cell of a row in a column; one that spans several columns is in each of them.
const cellAt = (row, column) => [...row.cells].find((cell) => (column -= cell.colSpan) < 0);
const textAt = (row, column) => {
  const cell = cellAt(row, column);
  return cell?.dataset.value ?? cell?.textContent.trim() ?? "";
};
// "71.2 ± 0.5" counts as 71.2.
const numberOf = (text) => Number.parseFloat(text.replaceAll(",", "").replace("−", "-"));

// "outcome:failed" and "score@64>70" are about a column, by the beginning of its name; where a page
// has no such column, and in all other words, it is about the whole row.
function matches(table, row, word) {
  const [, key, sign, value] = /^([^<>:]+)([<>:])(.+)$/.exec(word) ?? [];
  const columnOf = ({ keys }) => keys.findIndex((each) => key && each.startsWith(key));
  if (!tables.some((each) => columnOf(each) >= 0)) return row.textContent.toLowerCase().includes(word);
  const column = columnOf(table);
  if (column < 0) return true;
  const text = textAt(row, column);
  if (sign === ":") return text.toLowerCase().includes(value);
  return sign === "<" ? numberOf(text) < Number(value) : numberOf(text) > Number(value);
}

// What is no number comes last, whether the least or the largest is first.
function sorted(table, column, way) {
  const isNumber = table.head.cells[column].classList.contains("number");
  const keyed = table.rows.map((row) => [textAt(row, column), row]);
  const isEmpty = (text) => text === "" || (isNumber && Number.isNaN(numberOf(text)));
  const compare = (a, b) => (isNumber ? numberOf(a) - numberOf(b) : a.localeCompare(b));
  keyed.sort(([a], [b]) => isEmpty(a) - isEmpty(b) || (way === "-" ? compare(b, a) : compare(a, b)));
  return keyed.map(([, row]) => row);
}

function show() {
  const state = chosen();
  const words = (state.get("find") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const hidden = state.getAll("hide");
  tables.forEach((table, number) => {
    const [, column, way] = /^(\d+)([+-])$/.exec(state.get(`sort.${number}`)) ?? [];
    const isSorted = column in table.names;
    table.head.parentNode.append(...(isSorted ? sorted(table, column, way) : table.rows));
    for (const row of table.rows) row.hidden = !words.every((word) => matches(table, row, word));
    for (const row of [table.head, ...table.rows]) {
      for (const cell of row.cells) cell.hidden = false;
      table.names.forEach((name, i) => {
        const cell = hidden.includes(name) && cellAt(row, i);
        if (cell) cell.hidden = true;
      });
    }
    [...table.head.cells].forEach((th, i) => {
      th.ariaSort = isSorted && i === Number(column) ? { "+": "ascending", "-": "descending" }[way] : null;
    });
  });
  if (search.value !== (state.get("find") ?? "")) search.value = state.get("find") ?? "";
  boxes.forEach((box, i) => { box.checked = !hidden.includes(names[i]); });
  const rows = tables.flatMap((table) => table.rows);
  count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
}

function element(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

const search = element("input", { type: "search", placeholder: "word, column:word, column>number" });
const boxes = names.map((name) => element("input", { type: "checkbox", name }));
const count = element("output", { className: "pale small" });

function build() {
  const ticks = boxes.map((box) => element("label", { className: "tick" }, box, box.name));
  const columns = element("details", {}, element("summary", {}, "columns"), ...ticks);
  const found = element("label", {}, "rows with", search);
  const first = tables[0].head.closest("form") ?? tables[0].head.closest(".wide");
  first.before(element("div", { className: "choose tools" }, found, columns, count));
  search.addEventListener("input", () => choose((state) => state.set("find", search.value)));
  for (const box of boxes) {
    box.addEventListener("change", () => choose((state) => {
      state.delete("hide");
      for (const { name } of boxes.filter((each) => !each.checked)) state.append("hide", name);
    }));
  }
  tables.forEach((table, number) => [...table.head.cells].forEach((th, column) => {
    if (!table.names[column]) return;
    const button = element("button", { type: "button", className: "sort" }, ...th.childNodes);
    // Numbers begin with the largest, words with the first; the third click is as the page was.
    const ways = th.classList.contains("number") ? ["-", "+", ""] : ["+", "-", ""];
    button.addEventListener("click", () => choose((state) => {
      const key = `sort.${number}`;
      const was = ways.findIndex((way) => way && state.get(key) === `${column}${way}`);
      state.set(key, ways[was + 1] && `${column}${ways[was + 1]}`);
    }));
    th.append(button);
  }));
  addEventListener("hashchange", show);
  show();
}

if (tables.length) build();
