"use strict";
(() => {
  // Sorting: click a column header, or press Enter on it, to sort; again to reverse. Missing values go last.
  const key = (row, j) => {
    const cell = row.cells[j];
    if (!("value" in cell.dataset)) return cell.textContent.trim();
    return cell.dataset.value === "" ? null : Number(cell.dataset.value);
  };
  const compare = (a, b) => (typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true }));
  const sort = (head) => {
    const table = head.closest("table");
    const up = head.getAttribute("aria-sort") !== "ascending";
    const j = head.cellIndex;
    const rows = [...table.tBodies[0].rows].map((row) => [key(row, j), row]);
    const known = rows.filter(([value]) => value !== null);
    known.sort(([a], [b]) => (up ? compare(a, b) : compare(b, a)));
    for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    table.tBodies[0].append(...known.map(([, row]) => row), ...rows.filter(([v]) => v === null).map(([, row]) => row));
  };
  for (const button of document.querySelectorAll("th[aria-sort] button")) {
    button.addEventListener("click", () => sort(button.parentElement));
  }

  // CSV: raw numbers; text that a spreadsheet would read as a formula gets an apostrophe.
  const field = (words) => {
    const safe = /^[\s]*[=+\-@\t\r]/.test(words) ? "'" + words : words;
    return /[",\n\r;]/.test(safe) ? '"' + safe.replaceAll('"', '""') + '"' : safe;
  };
  const fields = (cell) => {
    const words = cell.textContent.trim();
    if (cell.tagName === "TH" && "ends" in cell.dataset) return [words, words + " low", words + " high"].map(field);
    const value = "value" in cell.dataset ? cell.dataset.value : field(words);
    return "ends" in cell.dataset ? [value, ...cell.dataset.ends.split(" ")] : [value];
  };
  const csv = (table) => [...table.rows].map((row) => [...row.cells].flatMap(fields).join(",")).join("\r\n") + "\r\n";
  for (const button of document.querySelectorAll("button.csv")) {
    button.addEventListener("click", () => {
      const table = button.parentElement.previousElementSibling.querySelector("table");
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob(["\ufeff" + csv(table)], { type: "text/csv;charset=utf-8" }));
      const name = table.caption.textContent.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");
      link.download = (name.slice(0, 60) || "table") + ".csv";
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
  }

  // Tooltips: each figure is one tab stop; arrow keys move between marks. SVG titles would show a second tooltip.
  const tip = document.getElementById("tip");
  let shown = null;
  const show = (mark) => {
    shown = mark;
    tip.textContent = mark.getAttribute("aria-label");
    tip.hidden = false;
    const at = mark.getBoundingClientRect();
    const own = tip.getBoundingClientRect();
    const wide = document.documentElement.clientWidth;
    const x = Math.min(Math.max(at.left + at.width / 2 - own.width / 2, 8), wide - own.width - 8);
    const y = at.top - own.height - 8 < 0 ? at.bottom + 8 : at.top - own.height - 8;
    tip.style.left = x + "px";
    tip.style.top = y + "px";
  };
  const hide = () => {
    shown = null;
    tip.hidden = true;
  };
  for (const svg of document.querySelectorAll("figure svg")) {
    const title = svg.querySelector(":scope > title");
    svg.setAttribute("aria-label", title.textContent);
    svg.removeAttribute("aria-labelledby");
    title.remove();
    const marks = [...svg.querySelectorAll(".mark")];
    marks.forEach((mark, k) => {
      const own = mark.querySelector(":scope > title");
      mark.setAttribute("aria-label", own.textContent);
      own.remove();
      mark.setAttribute("tabindex", k ? "-1" : "0");
      for (const event of ["pointerenter", "focus"]) mark.addEventListener(event, () => show(mark));
      for (const event of ["pointerleave", "blur"]) mark.addEventListener(event, hide);
      mark.addEventListener("keydown", (event) => {
        const last = marks.length - 1;
        const to = { ArrowRight: k + 1, ArrowDown: k + 1, ArrowLeft: k - 1, ArrowUp: k - 1, Home: 0, End: last }[event.key];
        if (event.key === "Escape") hide();
        if (to === undefined || !marks[to]) return;
        event.preventDefault();
        mark.setAttribute("tabindex", "-1");
        marks[to].setAttribute("tabindex", "0");
        marks[to].focus();
      });
    });
  }
  // A focused mark may scroll into view: its tooltip moves with it.
  addEventListener("scroll", () => shown && show(shown), { passive: true });

  // Open collapsed parts for printing; with many models, whose tables would fill many pages, only those that are open.
  const folded = document.querySelector("header.many") ? [] : document.querySelectorAll("details");
  let open = [];
  addEventListener("beforeprint", () => {
    open = [...folded].filter((one) => one.open);
    for (const one of folded) one.open = true;
  });
  addEventListener("afterprint", () => {
    for (const one of folded) one.open = open.includes(one);
  });
})();
