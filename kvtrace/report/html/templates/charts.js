// Draws the charts: each once, then only its rows change, unless its spec, theme or width does.
const charts = {
  "heat-k": { spec: () => `heat:${mapKind()}`, rows: (size) => rowsOf.heatMap(0, size.cell), fit: heatSize },
  "heat-v": { spec: () => `heat:${mapKind()}`, rows: (size) => rowsOf.heatMap(1, size.cell), fit: heatSize },
  "position-clipped": { spec: () => "position:vectors_clipped", rows: () => rowsOf.byPosition("vectors_clipped", page.floors.position), height: 190, nothing: "No token has a clipped value." },
  "position-sqnr": { spec: () => "position:sqnr_db", rows: () => rowsOf.byPosition("sqnr_db", null), height: 190 },
  "clip-flush": { spec: () => "clipFlush", rows: () => rowsOf.clipFlush(), height: 280 },
  "before-after": { spec: () => "beforeAfter", rows: () => rowsOf.beforeAfter(), height: 340 },
  "scales-k": { spec: () => "scales", rows: () => rowsOf.scales(0), height: 170 },
  "scales-v": { spec: () => "scales", rows: () => rowsOf.scales(1), height: 170 },
};
page.workloads.forEach((_, workload) => {
  charts[`bands-${workload}`] = { spec: () => "bands", rows: () => rowsOf.bands(workload), height: 170 };
});

function heatSize(width) {
  const layers = new Set(page.heads.map(([layer]) => layer)).size;
  const kvHeads = new Set(page.heads.map(([, kvHead]) => kvHead)).size;
  const wide = Math.max(width, layers * 9 + 60);
  const height = kvHeads * Math.max(14, Math.min(26, width / layers));
  return { width: wide, height, cell: (wide - 60) / layers };
}

let drawings = 0;

async function drawAll() {
  drawings++;
  document.documentElement.dataset.drawn = "some";
  for (const key of Object.keys(charts)) {
    await draw(key);
    // Lets the browser paint and answer between two charts.
    await new Promise((resolve) => setTimeout(resolve));
  }
  if (--drawings === 0) document.documentElement.dataset.drawn = "all";
}

async function draw(key) {
  const chart = charts[key];
  const place = document.getElementById(key);
  if (!place || place.clientWidth === 0) return;
  if (chart.isDrawing) {
    chart.isStale = true;
    return;
  }
  chart.isDrawing = true;
  if (!key.startsWith("heat-")) await loadOthers();
  do {
    chart.isStale = false;
    await drawOnce(chart, place);
    bringIntoView(place);
    hideEmptyGroups(place);
  } while (chart.isStale);
  chart.isDrawing = false;
  place.dataset.drawn = "yes";
}

// Vega gives a group without marks a role and no name, which a screen reader would announce as nothing.
function hideEmptyGroups(place) {
  for (const group of place.querySelectorAll("g[aria-roledescription$='container']")) {
    if (group.childElementCount === 0) group.setAttribute("aria-hidden", "true");
    else group.removeAttribute("aria-hidden");
  }
}

// A map wider than its place scrolls; the chosen cell stays in sight.
function bringIntoView(place) {
  const mark = place.querySelector(".chosen_marks path");
  if (!mark || place.scrollWidth <= place.clientWidth) return;
  const inside = place.getBoundingClientRect();
  const cell = mark.getBoundingClientRect();
  if (cell.left < inside.left || cell.right > inside.right)
    place.scrollLeft += cell.left - inside.left - inside.width / 2;
}

async function drawOnce(chart, place) {
  const { cell, ...size } = chart.fit ? chart.fit(place.clientWidth) : { width: place.clientWidth, height: chart.height };
  const key = [chart.spec(), shownTheme(), size.width].join(" ");
  const rows = chart.rows({ cell });
  if (Object.values(rows)[0].length === 0) {
    chart.view?.finalize();
    chart.view = chart.key = null;
    place.textContent = chart.nothing ?? "Nothing was measured here.";
    return;
  }
  if (chart.key === key) {
    for (const name of Object.keys(rows)) chart.view.data(name, rows[name]);
    await chart.view.runAsync();
    return;
  }
  chart.view?.finalize();
  const spec = { ...structuredClone(page.specs[chart.spec()]), ...size, autosize: { type: "fit", contains: "padding" } };
  if (chart.fit) {
    spec.autosize = { type: "fit-x", contains: "padding" };
  }
  spec.datasets = rows;
  // `ast`: expressions are interpreted, since the page's security policy forbids making code from text.
  const embedded = await vegaEmbed(place, spec, {
    mode: "vega-lite",
    ast: true,
    renderer: "svg",
    actions: false,
    defaultStyle: false,
    // Errors alone: a layer without rows, such as no covered line, is no fault.
    logLevel: 1,
    config: page.config[shownTheme()],
    tooltip: showTip,
  });
  chart.view = embedded.view;
  chart.key = key;
  place.dataset.drawnIn = shownTheme();
  chart.view.addEventListener("click", (_, item) => {
    if (item?.datum?.head !== undefined) choose(item.datum.head, item.datum.tensorIndex ?? item.datum.tensor);
  });
}

function showTip(_, event, item) {
  const box = document.getElementById("tip");
  const tip = item?.datum?.tip;
  box.hidden = !tip;
  if (!tip) return;
  box.replaceChildren(
    ...tip.map(([name, value]) => {
      const line = document.createElement("div");
      const label = document.createElement("span");
      const text = document.createElement("b");
      label.textContent = name;
      text.textContent = value;
      line.append(label, text);
      return line;
    }),
  );
  const { width, height } = box.getBoundingClientRect();
  box.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
  box.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - height - 8))}px`;
}
