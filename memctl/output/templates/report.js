"use strict";
(() => {
  const root = document.documentElement;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  const theme = document.getElementById("theme");
  const themes = ["system", "light", "dark"];
  theme.hidden = false;
  theme.onclick = () => {
    const next = themes[(themes.indexOf(root.dataset.theme ?? "system") + 1) % 3];
    root.dataset.theme = next;
    theme.textContent = `Theme: ${next}`;
  };

  const tip = document.getElementById("tip");
  for (const chart of all("svg[role]")) {
    const marks = all("title", chart).map((title) => {
      const mark = title.parentNode;
      mark.tip = title.textContent;
      title.remove(); // or the browser shows a second tip
      return mark;
    });
    const row = Number(chart.dataset.row ?? 0);
    let at = -1;
    const show = (place) => {
      if (place === at) return;
      marks[at]?.classList.remove("on");
      at = place;
      const mark = marks[at];
      tip.textContent = mark ? mark.tip : "";
      if (!mark) return;
      mark.classList.add("on");
      const box = mark.getBoundingClientRect();
      const left = box.left + box.width / 2 - tip.offsetWidth / 2;
      const above = box.top - tip.offsetHeight - 6;
      tip.style.left = `${Math.max(8, Math.min(left, root.clientWidth - tip.offsetWidth - 8))}px`;
      tip.style.top = `${above < 8 ? box.bottom + 6 : above}px`;
    };
    chart.onpointermove = chart.onpointerdown = (event) =>
      show(marks.indexOf(event.target.closest(".mark")));
    chart.onpointerleave = chart.onblur = () => show(-1);
    chart.onkeydown = (event) => {
      const last = marks.length - 1;
      const to = {
        ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last,
        ...(row && { ArrowUp: at - row, ArrowDown: at + row }),
      }[event.key];
      if (event.key === "Escape") show(-1);
      else if (to === undefined) return;
      else if (to >= 0 && to <= last) show(to);
      event.preventDefault();
    };
  }

  const units = { "": 1, B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12 };
  const key = (row, column) => {
    const cell = row.cells[column];
    const text = cell.dataset.v ?? cell.textContent;
    const found = /^([\d,.]+) ?(|B|kB|MB|GB|TB)$/.exec(text);
    return found ? Number(found[1].replaceAll(",", "")) * units[found[2]] : text;
  };
  const order = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  for (const table of all("table"))
    all("th", table).forEach((head, column) => {
      const button = document.createElement("button");
      button.append(...head.childNodes);
      head.append(button);
      button.onclick = () => {
        const up = head.getAttribute("aria-sort") === "descending";
        for (const other of all("th", table)) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = all("tbody tr", table);
        rows.sort((a, b) => order(key(a, column), key(b, column)) * (up ? 1 : -1));
        table.tBodies[0].append(...rows);
      };
    });

  for (const button of all(".copy")) {
    button.hidden = false;
    button.onclick = () => {
      getSelection().selectAllChildren(button.previousElementSibling);
      document.execCommand("copy");
      button.textContent = "Copied";
    };
  }

  addEventListener("beforeprint", () => {
    for (const finding of all(".finding")) finding.open = true;
  });
})();
