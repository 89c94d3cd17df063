// Tables of the class "browse": sorted by a click on a heading, filtered by words and by columns.
"use strict";

const collate = new Intl.Collator("en", { numeric: true }).compare;

/** The order of two texts: of numbers by their value, which may be negative. */
function compare(one, other) {
  const difference = one && other ? Number(one) - Number(other) : NaN;
  return Number.isNaN(difference) ? collate(one, other) : difference;
}

/**
 * The few values of a column that is worth a menu of its own; null for others. A table of the class
 * "decide" has menus for longer lists of longer values, such as the answers to a question.
 */
function choices(table, rows, column) {
  const [most, longest] = table.classList.contains("decide") ? [40, 44] : [6, 24];
  const values = new Set(rows.map((row) => row.cells[column].textContent.trim()));
  const long = [...values].some((value) => value.length > longest || /^[\d.]/.test(value));
  return long || values.size > most || values.size < 2 ? null : [...values].sort();
}

function control(kind, label, parent) {
  const box = document.createElement("label");
  const field = document.createElement(kind);
  box.append(kind === "input" ? "" : `${label} `, field);
  field.setAttribute("aria-label", label);
  parent.append(box);
  return field;
}

/** What a heading means, if it has more to show when it is pointed at. */
function meaning(head) {
  return [...head.querySelectorAll("[title]")].map((part) => part.title).join(" ");
}

/**
 * The words by which a row is found: its text, the properties that it has, and all of them without
 * hyphens and other signs, as names are often written.
 */
function wordsOf(row, heads) {
  const properties = heads.filter((_, column) => row.cells[column].textContent.trim() === "yes");
  const names = properties.map((head) => `${head.textContent} ${meaning(head)}`);
  const text = [...row.cells].map((cell) => cell.textContent).concat(names).join(" ").toLowerCase();
  return `${text} ${text.replace(/[^\p{L}\p{N}\s]/gu, "")}`;
}

function browse(table) {
  const heads = [...table.tHead.rows[0].cells];
  const names = heads.map((head) => head.textContent.trim());
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const found = new Map(rows.map((row) => [row, wordsOf(row, heads)]));
  const bar = document.createElement("div");
  bar.className = "browse-bar";
  bar.setAttribute("role", "search");
  const words = control("input", `filter ${rows.length} rows by words`, bar);
  words.type = "search";
  words.placeholder = "filter by words";
  const tests = [];
  names.forEach((name, column) => {
    const values = choices(table, rows, column);
    if (!values) return;
    if (values.every((value) => value === "" || value === "yes")) {
      const box = control("input", name, bar);
      box.type = "checkbox";
      box.parentElement.append(` ${name}`);
      box.parentElement.title = meaning(heads[column]);
      box.addEventListener("change", filter);
      tests.push((row) => !box.checked || row.cells[column].textContent.trim() === "yes");
    } else {
      const menu = control("select", name, bar);
      menu.append(new Option("any", ""), ...values.map((value) => new Option(value, value)));
      menu.addEventListener("change", filter);
      tests.push((row) => !menu.value || row.cells[column].textContent.trim() === menu.value);
    }
  });
  const count = document.createElement("span");
  count.setAttribute("aria-live", "polite");
  count.className = "browse-count";
  bar.append(count);

  function filter() {
    const parts = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = found.get(row);
      const on = parts.every((part) => text.includes(part)) && tests.every((test) => test(row));
      row.hidden = !on;
      shown += on;
    }
    count.textContent = `${shown} of ${rows.length}`;
  }

  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[column].textContent.trim();
      rows.sort((one, other) => (down ? -1 : 1) * compare(key(one), key(other)));
      body.append(...rows);
    });
  });
  words.addEventListener("input", filter);
  const place = table.closest(".table-wrapper") || table;
  place.before(bar);
  filter();
}

document.querySelectorAll("table.browse").forEach(browse);
