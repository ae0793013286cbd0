// The controls, the tables that follow them, and the keyboard.
const byId = (id) => document.getElementById(id);
const layersOf = [...new Set(page.heads.map(([layer]) => layer))];

function shownTheme() {
  const chosen = document.documentElement.dataset.theme;
  if (chosen !== "auto") return chosen;
  return matchMedia("(prefers-color-scheme: dark)").matches && !matchMedia("print").matches ? "dark" : "light";
}

function choose(head, tensor) {
  state.head = head;
  if (tensor !== undefined) state.tensor = tensor;
  refresh();
  const value = measured(state.measure, state.candidate, state.tensor, head ?? 0);
  byId("announced").textContent =
    head === null ? "All heads" : `${headName(head, state.tensor)}: ${page.measures[state.measure]} ${showMeasure(value)}`;
}

function refresh() {
  const { head, tensor } = focus();
  const [layer, kvHead] = page.heads[head];
  byId("layer").value = state.head === null ? "" : layer;
  fillHeads(state.head === null ? null : layer);
  byId("kv-head").value = state.head === null ? "" : kvHead;
  byId("heat-k-part").hidden = !shownTensors().includes(0);
  byId("heat-v-part").hidden = !shownTensors().includes(1);
  const who = `${headName(head, tensor)}${state.head === null ? ", the worst head" : ""}`;
  for (const place of document.querySelectorAll("[data-focus]")) place.textContent = who;
  for (const place of document.querySelectorAll("[data-scope]"))
    place.textContent = state.head === null ? "all heads" : headName(state.head, state.tensor);
  for (const place of document.querySelectorAll("[data-candidate-name]"))
    place.textContent = page.candidates[state.candidate].label;
  for (const place of document.querySelectorAll("[data-of-candidate]"))
    place.hidden = Number(place.dataset.ofCandidate) !== state.candidate;
  showNumbers(head, tensor);
  showRegressions();
  showAudit();
  showCommands(head, tensor);
  byId("few").hidden = !page.heads.some((_, one) => isFew(requestsOf(one)));
  return drawAll();
}

function fillHeads(layer) {
  const heads = page.heads.filter(([one]) => layer === null || one === layer).map(([, kvHead]) => kvHead);
  const options = ["", ...new Set(heads)].map((kvHead) => option(kvHead, kvHead === "" ? "all" : `${kvHead}`));
  byId("kv-head").replaceChildren(...options);
}

function option(value, text) {
  const one = document.createElement("option");
  one.value = value;
  one.textContent = text;
  return one;
}

function cells(texts, tag = "td") {
  return texts.map((text) => {
    const cell = document.createElement(tag);
    cell.textContent = text;
    return cell;
  });
}

function tableRow(texts, onClick) {
  const row = document.createElement("tr");
  const [first, ...others] = texts;
  const head = cells([onClick ? "" : first], "th")[0];
  head.scope = "row";
  if (onClick) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "link";
    button.textContent = first;
    button.addEventListener("click", onClick);
    head.append(button);
  }
  row.append(head, ...cells(others));
  return row;
}

function showNumbers(head, focused) {
  const rows = [0, 1].map((tensor) => {
    const of = (name) => measured(name, state.candidate, tensor, head);
    const covered = at(data.scales.covered_amax, state.candidate, tensor, head);
    const row = tableRow([
      TENSORS[tensor],
      percent(of("clipped_frac")),
      percent(of("out_of_range_frac")),
      percent(of("vectors_out_of_range")),
      percent(of("flushed_frac")),
      percent(of("clip_error_frac")),
      decibel(of("sqnr_db")),
      magnitude(of("max_abs")),
      magnitude(covered),
    ]);
    row.dataset.tensor = TENSORS[tensor];
    row.classList.toggle("focused", tensor === focused);
    return row;
  });
  byId("numbers").replaceChildren(...rows);
}

function showRegressions() {
  const worse = comparedHeads().filter((one) => one.is_worse).sort((a, b) => b.loss - a.loss);
  const shown = worse.slice(0, 20);
  const total = comparedHeads().length;
  byId("regressions-count").textContent =
    state.before === state.candidate
      ? "Before and after are the same candidate."
      : `${worse.length.toLocaleString("en-US")} of ${amount(total, "head")} worse` +
        (worse.length > shown.length ? `; the worst ${shown.length} are listed.` : ".");
  byId("regressions").replaceChildren(
    ...shown.map((one) =>
      tableRow([headName(one.head, one.tensorIndex), showMeasure(one.from), showMeasure(one.to)], () =>
        choose(one.head, one.tensorIndex),
      ),
    ),
  );
  byId("regressions").closest("table").hidden = shown.length === 0;
}

function showAudit() {
  const rows = page.audit.filter((row) => row.candidate === state.candidate);
  const range = (low, high) => (low === high ? magnitude(high ?? NaN) : `${magnitude(low)}–${magnitude(high)}`);
  byId("audit").replaceChildren(
    ...rows.map((row) =>
      tableRow([
        `${row.layer} ${row.tensor}${page.sources.length > 1 ? ` ${page.sources[row.source]}` : ""}`,
        row.min_effective_scale === null ? "–" : range(row.min_effective_scale, row.max_effective_scale),
        row.min_scale === null ? "not quantized" : range(row.min_scale, row.max_scale),
        row.optimal === null ? "–" : magnitude(row.optimal),
        row.min_headroom === null ? "–" : `${Number(row.min_headroom.toPrecision(3))}`,
      ]),
    ),
  );
  byId("audit").closest("table").hidden = rows.length === 0;
  byId("audit-none").hidden = rows.length > 0;
}

// The line under each chart that asks for the very numbers it shows.
function showCommands(head, tensor) {
  const [layer, kvHead] = page.heads[head];
  const known = {
    candidate: page.candidates[state.candidate].name,
    before: page.candidates[state.before].name,
    tensor: TENSORS[tensor].toLowerCase(),
    layer: `${layer}`,
    kv_head: `${kvHead}`,
  };
  for (const place of document.querySelectorAll("[data-query]")) {
    const names = place.dataset.parameters.split(" ").filter(Boolean);
    const wanted = state.head === null && place.dataset.whole === "yes" ? ["candidate"] : names;
    const parameters = names.filter((name) => wanted.includes(name)).map((name) => ` --param ${shellWord(`${name}=${known[name]}`)}`);
    place.textContent = `kvtrace query ${shellWord(page.run)} ${place.dataset.query}${parameters.join("")}`;
  }
}

function move(event) {
  const { head, tensor } = focus();
  const [layer, kvHead] = page.heads[head];
  const at = layersOf.indexOf(layer);
  const steps = {
    ArrowLeft: [at - 1, kvHead],
    ArrowRight: [at + 1, kvHead],
    ArrowUp: [at, kvHead - 1],
    ArrowDown: [at, kvHead + 1],
    Home: [0, kvHead],
    End: [layersOf.length - 1, kvHead],
  };
  const mapTensor = Number(event.currentTarget.dataset.tensor);
  if (event.key === "Escape") return choose(null);
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    return choose(head, mapTensor);
  }
  if (!(event.key in steps)) return undefined;
  event.preventDefault();
  const [to, toHead] = steps[event.key];
  const found = page.heads.findIndex(([one, other]) => one === layersOf[to] && other === toHead);
  return choose(found < 0 ? head : found, tensor === mapTensor && found >= 0 ? tensor : mapTensor);
}

function connectControls() {
  const follow = (id, change) => byId(id).addEventListener("change", (event) => (change(event.target.value), refresh()));
  follow("candidate", (value) => (state.candidate = Number(value)));
  follow("before", (value) => (state.before = Number(value)));
  follow("measure", (value) => (state.measure = value));
  follow("workload", (value) => (state.workload = Number(value)));
  follow("layer", (value) => {
    const found = page.heads.findIndex(([layer]) => `${layer}` === value);
    state.tensor = focus().tensor;
    state.head = found < 0 ? null : found;
  });
  follow("kv-head", (value) => {
    const { head, tensor } = focus();
    const found = page.heads.findIndex(([layer, kvHead]) => layer === page.heads[head][0] && `${kvHead}` === value);
    state.tensor = tensor;
    state.head = found < 0 ? null : found;
  });
  for (const radio of document.querySelectorAll("input[name=tensors]"))
    radio.addEventListener("change", () => {
      state.tensors = radio.value;
      if (state.head !== null && radio.value !== "both") state.tensor = radio.value === "k" ? 0 : 1;
      refresh();
    });
  byId("all-heads").addEventListener("click", () => choose(null));
  byId("worst-head").addEventListener("click", () => {
    const worst = worstHead();
    choose(worst.head, worst.tensor);
  });
  for (const map of document.querySelectorAll(".heat")) map.addEventListener("keydown", move);
  byId("theme").addEventListener("change", (event) => {
    document.documentElement.dataset.theme = event.target.value;
    drawAll();
  });
  for (const button of document.querySelectorAll("[data-pick]"))
    button.addEventListener("click", () => {
      const [head, tensor] = button.dataset.pick.split(" ").map(Number);
      choose(head, tensor);
      byId("where").scrollIntoView();
    });
}

function watchSurroundings() {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  matchMedia("print").addEventListener("change", drawAll);
  let waiting;
  new ResizeObserver(() => {
    clearTimeout(waiting);
    waiting = setTimeout(drawAll, 150);
  }).observe(document.querySelector("main"));
}

async function start() {
  if (page.candidates.length === 0 || page.heads.length === 0) return;
  await loadNumbers(FIRST);
  byId("candidate").value = state.candidate;
  byId("before").value = state.before;
  connectControls();
  await refresh();
  watchSurroundings();
}

start();
