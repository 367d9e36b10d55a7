"use strict";
// Draws a document (agent/cli/report_page.py) with uPlot. Names come from programs: they enter the page as text only.
(function () {
  const PLOT_HEIGHT = 150, LEFT = 68, COLOURS = 6;
  const plots = [];
  const LENGTHS = [[300, "5 min"], [900, "15 min"], [3600, "1 h"], [21600, "6 h"], [86400, "1 d"]];
  const REFRESH_MS = 5000;
  let made = null, clock = "UTC", view = null;
  // Of the page of `tickscope ui`, which asks a server: the newest seconds it shows, or null while it shows a fixed time.
  const server = !document.getElementById("document");
  let newest = 900, words = "", chosenId = "", failure = "";

  function element(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name === "onclick") node.addEventListener("click", value);
      else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
    }
    for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child);
    return node;
  }

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // Times. t is seconds from the start of the span on CLOCK_BOOTTIME, which no jump of the wall clock moves.

  function wall(t) { // Unix seconds; null: unknown
    let found = null;
    for (const [at, unix] of made.wall) {
      if (at > t && found) break;
      if (unix !== null) found = unix + (t - at);
    }
    return found;
  }

  function timeText(t, digits) {
    if (clock === "boot") return "boot+" + (made.from_boot_s + t).toFixed(digits);
    const unix = wall(t);
    if (unix === null) return "boot+" + (made.from_boot_s + t).toFixed(digits);
    const date = new Date(Math.floor(unix * 1000));
    const parts = clock === "UTC"
      ? [date.getUTCHours(), date.getUTCMinutes(), date.getUTCSeconds()]
      : [date.getHours(), date.getMinutes(), date.getSeconds()];
    const below = digits ? (unix - Math.floor(unix)).toFixed(digits).slice(1) : "";
    return parts.map((part) => String(part).padStart(2, "0")).join(":") + (below.startsWith(".") ? below : "");
  }

  function dayText(t) {
    const unix = wall(t);
    if (unix === null) return "";
    const iso = new Date(unix * 1000).toISOString();
    return iso.slice(0, 10);
  }

  // Values.

  function short(value) {
    const size = Math.abs(value);
    if (size >= 1e12) return (value / 1e12).toPrecision(3) + " T";
    if (size >= 1e9) return (value / 1e9).toPrecision(3) + " G";
    if (size >= 1e6) return (value / 1e6).toPrecision(3) + " M";
    if (size >= 1e5) return (value / 1e3).toPrecision(3) + " k";
    return String(Number(value.toPrecision(4)));
  }

  const NS = { ns: 1, us: 1e3, ms: 1e6, s: 1e9 };

  function valueText(value, unit) {
    if (value === null || value === undefined) return "-";
    if (unit in NS) {
      const ns = value * NS[unit], size = Math.abs(ns);
      if (size === 0) return "0";
      for (const [name, scale] of [["d", 8.64e13], ["h", 3.6e12], ["min", 6e10], ["s", 1e9], ["ms", 1e6], ["us", 1e3]])
        if (size >= scale * (name === "min" ? 2 : 1)) return Number((ns / scale).toPrecision(3)) + " " + name;
      return Number(ns.toPrecision(3)) + " ns";
    }
    if (unit === "1/s") return short(value) + "/s";
    return short(value) + (unit ? " " + unit : "");
  }

  // Panels.

  function timesOf(panel) {
    if (panel.times) return panel.times;
    const count = panel.curves[0].values.length;
    const start = panel.start || 0;
    return Array.from({ length: count }, (_, at) => start + (at + 0.5) * panel.step);
  }

  function marksPlugin(panel, finding) {
    const usual = panel.curves.filter((curve) => curve.usual !== undefined && curve.usual !== null);
    return {
      hooks: {
        drawClear: (plot) => {
          const { left, top, width, height } = plot.bbox, draw = plot.ctx;
          const x = (t) => Math.min(Math.max(plot.valToPos(t, "x", true), left), left + width);
          draw.save();
          draw.fillStyle = colour("--gap");
          for (const gap of made.gaps) draw.fillRect(x(gap.from), top, Math.max(x(gap.to) - x(gap.from), 1), height);
          draw.fillStyle = colour("--span");
          for (const one of finding ? [finding] : made.findings.filter((each) => each.severity === "alarm"))
            draw.fillRect(x(one.start), top, Math.max(x(one.end) - x(one.start), 2 * devicePixelRatio), height);
          draw.restore();
        },
        draw: (plot) => {
          const { left, top, width, height } = plot.bbox, draw = plot.ctx, ratio = devicePixelRatio;
          draw.save();
          draw.beginPath();
          draw.rect(left, top, width, height);
          draw.clip();
          draw.font = 11 * ratio + "px system-ui, sans-serif";
          draw.textAlign = "left";
          draw.textBaseline = "alphabetic";
          draw.lineWidth = ratio;
          draw.strokeStyle = draw.fillStyle = colour("--jump");
          draw.setLineDash([4 * ratio, 3 * ratio]);
          const rows = [];
          for (const jump of made.jumps) {
            const x = plot.valToPos(jump.t, "x", true);
            if (x < left || x > left + width) continue;
            draw.beginPath();
            draw.moveTo(x, top);
            draw.lineTo(x, top + height);
            draw.stroke();
            const label = (jump.size_ns > 0 ? "+" : "") + valueText(jump.size_ns, "ns")
              + (jump.by && panel.table === "clock_change" ? " by " + jump.by : "");
            const wide = draw.measureText(label).width, at = Math.min(x + 4 * ratio, left + width - wide);
            let row = rows.findIndex((end) => end < at); // labels of jumps that are close stand below each other
            if (row < 0) row = rows.push(0) - 1;
            rows[row] = at + wide;
            if (row < 4) draw.fillText(label, at, top + (12 + 13 * row) * ratio);
          }
          panel.curves.forEach((curve, at) => {
            if (!curve.range) return;
            const [low, high] = curve.range.map((value) => plot.valToPos(value, "y", true));
            draw.fillStyle = colour("--c" + (at % COLOURS)) + "22";
            draw.fillRect(left, high, width, Math.max(low - high, ratio));
          });
          draw.strokeStyle = colour("--soft");
          draw.setLineDash([2 * ratio, 4 * ratio]);
          for (const curve of usual) {
            const y = plot.valToPos(curve.usual, "y", true);
            draw.beginPath();
            draw.moveTo(left, y);
            draw.lineTo(left + width, y);
            draw.stroke();
          }
          draw.restore();
        },
      },
    };
  }

  function drawPanel(panel, finding) {
    const times = timesOf(panel);
    const values = panel.curves.map((curve, at) => {
      const shown = element("b");
      const usual = curve.usual !== undefined && curve.usual !== null
        ? element("span", { class: "soft" }, " usually " + valueText(curve.usual, panel.unit))
        : curve.range ? element("span", { class: "soft" }, " before " + curve.range.map((value) => valueText(value, panel.unit)).join(" to ")) : null;
      return { shown, line: element("li", {}, element("i", { class: "k" + (at % COLOURS) }), curve.name || panel.title, " ", shown, usual) };
    });
    const place = element("div", { class: "plot", role: "img", "aria-label": summary(panel) });
    const command = element("details", { class: "command" }, element("summary", {}, "command"), element("code", {}, panel.command));
    const box = element("section", { class: "panel" },
      element("div", { class: "head" }, element("h3", {}, panel.title),
        panel.more ? element("span", { class: "soft" }, "and " + panel.more + " more") : null, command),
      element("ul", { class: "legend" }, values.map((value) => value.line)), place);
    const point = panel.style === "points", log = point && panel.unit in NS && least(panel) > 0;
    const series = panel.curves.map((curve, at) => ({
      label: curve.name,
      stroke: () => colour("--c" + (at % COLOURS)),
      width: point ? 0 : 1.5,
      paths: panel.style === "bars" ? uPlot.paths.stepped({ align: 0 }) : point ? () => null : undefined,
      points: { show: point ? true : undefined, size: 5, fill: () => colour("--c" + (at % COLOURS)) },
      spanGaps: panel.style === "line" && panel.table !== "clock_change",
    }));
    const axis = { stroke: () => colour("--soft"), grid: { stroke: () => colour("--grid"), width: 1 }, ticks: { stroke: () => colour("--grid") } };
    const data = [times, ...panel.curves.map((curve) => panel.style === "bars" ? curve.values.map((value) => value === null ? 0 : value) : curve.values)];
    const bands = [];
    panel.curves.forEach((curve, at) => {
      if (!curve.least) return;
      bands.push({ series: [at + 1, data.length], fill: () => colour("--c" + (at % COLOURS)) + "33" });
      data.push(curve.least);
      series.push({ width: 0, points: { show: false }, spanGaps: true });
    });
    const plot = new uPlot({
      width: 600,
      height: PLOT_HEIGHT,
      legend: { show: false },
      cursor: { sync: { key: "time" }, drag: { x: true, y: false, setScale: false }, y: false },
      scales: { x: { time: false, range: () => view }, y: log ? { distr: 3, range: () => decades(panel) } : { range: (_, low, high) => range(low, high, panel) } },
      axes: [
        { ...axis, space: 110, splits: (self, at, low, high, step) => splits(low, high, step), values: (self, ticks) => ticks.map((t) => timeText(t, tickDigits(ticks))) },
        { ...axis, size: LEFT, space: 32, ...(log ? { splits: () => powers(panel) } : {}), values: (self, ticks) => ticks.map((value) => value === null ? "" : valueText(value, panel.unit)) },
      ],
      series: [{}, ...series],
      bands,
      hooks: {
        setSelect: [(self) => {
          if (self.select.width > 4)
            setView(self.posToVal(self.select.left, "x"), self.posToVal(self.select.left + self.select.width, "x"));
          self.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        }],
        setCursor: [(self) => {
          const at = self.cursor.idx;
          values.forEach((value, curve) => {
            const { values, least } = panel.curves[curve];
            const low = at !== null && at !== undefined && least && least[at] !== values[at] ? valueText(least[at], panel.unit) + " to " : "";
            value.shown.textContent = at === null || at === undefined ? "" : low + valueText(values[at], panel.unit);
          });
          if (self.cursor.event || self.cursor.left >= 0) showCursor(at === null || at === undefined ? null : self.data[0][at]);
        }],
      },
      plugins: [marksPlugin(panel, finding)],
    }, data, place);
    plot.over.addEventListener("dblclick", () => setView(0, made.length_s));
    plots.push({ plot, place, box, panel, finding });
    return box;
  }

  const known = (panel) => panel.curves.flatMap((curve) => [...curve.values, curve.usual]).filter((value) => typeof value === "number");

  // The smallest value: a logarithmic scale has no place for 0.
  const least = (panel) => known(panel).reduce((a, b) => Math.min(a, b), Infinity);

  function decades(panel) {
    const most = known(panel).reduce((a, b) => Math.max(a, b), -Infinity);
    const low = 10 ** Math.floor(Math.log10(least(panel))), high = 10 ** Math.ceil(Math.log10(most));
    return [low, high > low ? high : low * 10];
  }

  function powers(panel) {
    const [low, high] = decades(panel), found = [];
    const step = Math.max(1, Math.ceil(Math.log10(high / low) / 3));
    for (let power = Math.round(Math.log10(low)); power <= Math.round(Math.log10(high)); power += step) found.push(10 ** power);
    return found;
  }

  function range(low, high, panel) {
    const usual = panel.curves.map((curve) => curve.usual).filter((value) => typeof value === "number");
    const bottom = Math.min(0, low === null ? 0 : low, ...usual), highest = Math.max(0, high === null ? 1 : high, ...usual), top = highest > bottom ? highest : bottom + 1;
    return [bottom < 0 ? bottom - (top - bottom) * 0.08 : 0, top + (top - bottom) * 0.08];
  }

  // Ticks stand on whole intervals of the clock that is shown.
  function splits(low, high, step) {
    const start = (clock === "boot" ? null : wall(low)) ?? made.from_boot_s + low, found = [];
    for (let t = low + (Math.ceil(start / step) * step - start); t <= high; t += step) found.push(t);
    return found;
  }

  const tickDigits = (ticks) => ticks.length > 1 && ticks[1] - ticks[0] < 1 ? (ticks[1] - ticks[0] < 0.1 ? 2 : 1) : 0;

  function summary(panel) {
    const largest = panel.curves.map((curve) => {
      const known = curve.values.filter((value) => value !== null);
      return (curve.name || panel.title) + ": at most " + valueText(known.reduce((a, b) => Math.max(a, b), -Infinity), panel.unit);
    });
    return panel.title + ". " + largest.join("; ");
  }

  let cursor = null;
  function showCursor(t) { if (cursor) cursor.textContent = t === null ? "" : timeText(t, 3); }

  function setView(from, to) {
    if (to - from < 0.01) return;
    view = [Math.max(0, from), Math.min(made.length_s, to)];
    for (const { plot } of plots) plot.setScale("x", { min: view[0], max: view[1] });
    if (server) {
      newest = null;
      buttons();
      clearTimeout(setView.timer);
      setView.timer = setTimeout(refine, 60);
    }
  }

  // Panels that can be seen get the points of the present view; a document has 600 of its whole time.
  async function refine() {
    const seen = plots.filter(({ box, panel, finding }) => {
      const { top, bottom } = box.getBoundingClientRect();
      return (panel.kind || finding) && bottom > 0 && top < innerHeight;
    });
    const of = (each) => [...new Set(seen.map(each).filter(Boolean))];
    const titles = of(({ panel }) => panel.kind).join("|");
    const findings = of(({ finding }) => finding && finding.id).join();
    if (!seen.length || !view) return;
    const asked = view.join();
    const [from, to] = view.map((t) => made.from_boot_s + t);
    const found = await ask("panels", { boot: made.boot_id, from, to, titles, findings, words });
    if (!found || asked !== view.join()) return;
    for (const one of seen) {
      const panels = one.finding ? found.evidence[one.finding.id] || [] : found.panels;
      const next = panels.find((panel) => panel.title === one.panel.title);
      if (!next || !next.curves.length) continue;
      next.start = found.from_boot_s - made.from_boot_s;
      const box = drawPanel(next, one.finding);
      one.plot.destroy();
      one.box.replaceWith(box);
      plots.splice(plots.indexOf(one), 1);
    }
    resize();
  }

  async function ask(what, query) {
    const token = new URLSearchParams(location.search).get("token");
    try {
      const answer = await fetch("/" + what + "?" + new URLSearchParams({ ...query, token }));
      const text = await answer.text();
      failure = answer.ok ? "" : answer.status === 409 ? JSON.parse(text).error : text;
      if (answer.ok) return JSON.parse(text);
    } catch (error) {
      failure = "tickscope ui does not answer: is it still running?";
    }
    return null;
  }

  async function load() {
    const query = newest === null
      ? { boot: made.boot_id, from: made.from_boot_s, to: made.from_boot_s + made.length_s } : { length: newest };
    const asked = newest;
    const found = await ask("document", { ...query, finding: chosenId, words });
    if (asked !== newest) return;
    if (found) {
      made = found;
      view = [0, made.length_s];
    }
    const open = [...document.querySelectorAll("details[open] > summary")].map((one) => one.textContent);
    const at = scrollY;
    draw();
    for (const one of document.querySelectorAll("details > summary")) if (open.includes(one.textContent)) one.parentNode.open = true;
    scrollTo(0, at);
  }

  function follow() {
    if (newest !== null && !document.hidden && document.activeElement.tagName !== "INPUT") load();
  }

  function zoom(factor) {
    const middle = (view[0] + view[1]) / 2, half = (view[1] - view[0]) / 2 * factor;
    setView(middle - half, middle + half);
  }

  function shift(part) {
    const wide = view[1] - view[0];
    const from = Math.min(Math.max(view[0] + wide * part, 0), made.length_s - wide);
    setView(from, from + wide);
  }

  // Findings.

  function list(title, items, open) {
    if (!items.length) return null;
    return element("details", open ? { open: "" } : {}, element("summary", {}, title + " (" + items.length + ")"), element("ul", {}, items));
  }

  // What happened when: a bar for each, all on one axis from the first start to the last end.
  function lanes(timeline, entry) {
    const from = Math.min(...timeline.map((one) => one.t)), to = Math.max(...timeline.map((one) => one.end));
    const wide = to - from;
    return timeline.map((one) => {
      if (!wide) return element("li", {}, entry(one));
      const bar = element("i", { class: one.part || "" });
      bar.style.left = (one.t - from) / wide * 100 + "%";
      bar.style.width = (one.end - one.t) / wide * 100 + "%";
      const part = one.part ? element("b", {}, one.part) : null;
      return element("li", { class: "lane" }, part, entry(one), element("div", {}, bar));
    });
  }

  function choose(finding) {
    chosenId = finding.id;
    newest = null;
    load().then(() => scrollTo(0, 0));
  }

  function drawFinding(finding, chosen) {
    const boxes = finding.panels.map((panel) => drawPanel(panel, finding));
    const entry = (one) => {
      const text = (one.cause && one.role !== "timeline" ? one.cause + ": " : "") + one.text;
      const when = timeText(one.t, 3) + " ";
      const panel = finding.panels[one.panel];
      if (!panel) return [when, text];
      return [when, element("button", { type: "button", onclick: () => {
        for (const marked of document.querySelectorAll(".marked")) marked.classList.remove("marked");
        const { box } = plots.find((each) => each.finding === finding && each.panel.title === panel.title);
        box.classList.add("marked");
        box.scrollIntoView({ block: "center" });
        const room = Math.max((one.end - one.t) * 2, 5);
        setView(Math.max(0, one.t - room), Math.min(made.length_s, one.end + room));
      } }, text)];
    };
    const item = (one) => element("li", {}, entry(one));
    const words = (one) => element("li", {}, one.cause + (one.confidence ? " (" + one.confidence.toFixed(2) + ")" : "") + ": " + one.words);
    const fact = (name, value) => value ? [element("dt", {}, name), element("dd", {}, value)] : [];
    const timeline = finding.evidence.filter((one) => one.role === "timeline");
    const support = finding.evidence.filter((one) => one.role === "for");
    const against = finding.evidence.filter((one) => one.role === "against");
    const head = element("article", { class: "card " + finding.severity + (chosen ? " chosen" : ""), id: "finding-" + finding.id },
      element("h2", { class: "sentence" }, server && !chosen
        ? element("button", { type: "button", class: "choose", onclick: () => choose(finding) }, finding.sentence) : finding.sentence),
      element("dl", { class: "facts" },
        fact("began", (finding.began || "boot+" + (made.from_boot_s + finding.start).toFixed(3)) + (finding.lasted ? ", lasted " + finding.lasted : "") + ", " + finding.state),
        fact("symptom", finding.symptom + (finding.subject ? " of " + finding.subject : "")),
        fact("cause", finding.cause + (finding.meaning ? ": " + finding.meaning : "") + (finding.confidence ? " (confidence " + finding.confidence.toFixed(2) + ")" : "")),
        fact("where", finding.where),
        fact("culprit", finding.culprit),
        fact("next", finding.next),
        fact("more", element("code", {}, "tickscope explain " + finding.id.slice(0, 8) + (finding.about ? "; tickscope causes " + finding.about : "")))),
      list("Timeline", lanes(timeline, entry), chosen),
      boxes,
      list("Evidence", support.map(item), chosen),
      list("Evidence against other causes", against.map(item), false),
      list("Other causes that fit less well", finding.others.map(words), chosen),
      list("Ruled out", finding.ruled_out.map(words), false),
      list("Not checked", finding.not_checked.map(words), false));
    return head;
  }

  function draw() {
    for (const { plot } of plots.splice(0)) plot.destroy();
    const chosen = made.findings.filter((one) => one.id === made.chosen);
    const others = made.findings.filter((one) => one.id !== made.chosen);
    cursor = element("span", { class: "cursor", "aria-live": "off" });
    const button = (text, title, act) => element("button", { type: "button", title, "aria-label": title, onclick: act }, text);
    const clocks = ["UTC", "local", "boot"].map((name) =>
      element("button", { type: "button", "aria-pressed": String(name === clock), onclick: () => { clock = name; draw(); } }, name));
    const main = element("main", {},
      failure ? element("p", { class: "note", role: "alert" }, failure) : null,
      made.notes.map((note) => element("p", { class: "note" }, note)),
      chosen.map((one) => drawFinding(one, true)),
      others.length ? element("h2", {}, chosen.length ? "Other findings in this time" : "Findings") : null,
      others.map((one) => drawFinding(one, false)),
      made.findings.length ? null : element("p", {}, "No findings in this time."),
      made.gaps.length ? list("Records were lost (grey in the curves)", made.gaps.map((gap) =>
        element("li", {}, timeText(gap.from, 3) + " to " + timeText(gap.to, 3) + ": " + gap.what + (gap.count === null ? "" : ", " + gap.count))), false) : null,
      element("h2", {}, "What was measured"),
      made.panels.map((panel) => drawPanel(panel, null)));
    document.body.replaceChildren(
      element("header", {}, element("h1", {}, made.host || "tickscope"),
        element("p", {}, dayText(0) + " " + timeText(0, 0) + " to " + timeText(made.length_s, 0) + (clock === "boot" ? "" : " " + (clock === "UTC" ? "UTC" : "local time"))),
        element("p", {}, "tickscope " + made.version)),
      element("nav", { class: "bar", "aria-label": "Time" },
        button("\u2212", "Zoom out", () => zoom(2)), button("+", "Zoom in", () => zoom(0.5)),
        button("\u2190", "Earlier", () => shift(-0.5)), button("\u2192", "Later", () => shift(0.5)),
        button("All", "Show the whole time", () => setView(0, made.length_s)), clocks, server ? asking() : [], cursor),
      main);
    resize();
  }

  // What only a server can do: the newest time, and names.
  function asking() {
    const lengths = LENGTHS.map(([seconds, name]) => element("button", { type: "button", class: "newest", "data-length": seconds,
      "aria-pressed": String(newest === seconds), title: "The newest " + name, onclick: () => { newest = seconds; load(); } }, name));
    const input = element("input", { type: "search", value: words, placeholder: "process, limiter, queue, peer", "aria-label": "Filter by name" });
    input.addEventListener("change", () => { words = input.value.trim(); load(); });
    return [...lengths, input];
  }

  function buttons() {
    for (const one of document.querySelectorAll(".newest")) one.setAttribute("aria-pressed", String(newest === Number(one.dataset.length)));
  }

  function resize() {
    for (const { plot, place } of plots) plot.setSize({ width: Math.max(place.clientWidth, 200), height: PLOT_HEIGHT });
  }

  window.addEventListener("resize", resize);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots.forEach(({ plot }) => plot.redraw(false, true)));
  if (server) {
    let waiting = 0;
    window.addEventListener("scroll", () => {
      clearTimeout(waiting);
      if (newest === null) waiting = setTimeout(refine, 150);
    });
    made = { host: "", version: "", from_boot_s: 0, length_s: 1, wall: [], jumps: [], gaps: [], notes: [], findings: [], panels: [], chosen: "" };
    view = [0, 1];
    load();
    setInterval(follow, REFRESH_MS);
  } else {
    made = JSON.parse(document.getElementById("document").textContent);
    view = [0, made.length_s];
    draw();
  }
})();
