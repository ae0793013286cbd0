// What can be chosen, how, and what follows from it.
const byId = (id) => document.getElementById(id);
const layersOf = [...new Set(page.heads.map(([layer]) => layer))];

function shownTheme() {
  const chosen = document.documentElement.dataset.theme;
  if (chosen !== "auto") return chosen;
  return matchMedia("(prefers-color-scheme: dark)").matches && !matchMedia("print").matches ? "dark" : "light";
}

function choose(head, tensor) {
  state.head = head;
  state.tensor = tensor;
  byId("said").textContent = `${headName(head, tensor)}: ${mapWords(mapValue(tensor, head))}`;
  return refresh();
}

function chooseMostHarmed() {
  const { head, tensor } = mostHarmed();
  return choose(head, tensor);
}

// One set of scales for the whole page; its address can be sent.
function chooseCandidate(candidate) {
  state.candidate = candidate;
  return chooseMostHarmed();
}

function refresh() {
  const { head, tensor } = state;
  byId("candidate").value = state.candidate;
  byId("heads-finding").textContent = headsFinding();
  byId("map-title").textContent =
    mapKind() === "loss" ? "Share of a head's energy that clipping costs" : "Nothing clips: range used, largest over covered value";
  for (const key of document.querySelectorAll("[data-bins]")) key.hidden = key.dataset.bins !== mapKind();
  const few = page.heads.some((_, one) => isFew(requestsOf(one)));
  for (const place of document.querySelectorAll("[data-few]")) place.hidden = !few;
  for (const place of document.querySelectorAll("[data-focus]")) place.textContent = upperFirst(headName(head, tensor));
  for (const place of document.querySelectorAll("[data-candidate-name]"))
    place.textContent = page.candidates[state.candidate].label;
  for (const place of document.querySelectorAll("[data-of-candidate]"))
    place.hidden = Number(place.dataset.ofCandidate) !== state.candidate;
  for (const row of document.querySelectorAll("[data-row]")) {
    const isChosen = Number(row.dataset.row) === state.candidate;
    row.classList.toggle("on", isChosen);
    row.querySelector("a").setAttribute("aria-current", isChosen);
  }
  showSummary(head, tensor);
  showNumbers(head, tensor);
  showRegressions();
  showAudit();
  showCommands(head, tensor);
  return drawAll();
}

// As `_finding` of heads.py says it.
function headsFinding() {
  const { head, tensor } = mostHarmed();
  return `${upperFirst(headName(head, tensor))} ${clips() ? "loses most to clipping" : "is closest to the edge"}`;
}

function upperFirst(text) {
  return text[0].toUpperCase() + text.slice(1);
}

function showSummary(head, tensor) {
  const of = (name) => measured(name, state.candidate, tensor, head);
  const covered = at(data.scales.covered_amax, state.candidate, tensor, head);
  const largest = `largest ${magnitude(of("max_abs"))}, covered ${magnitude(covered)} (${times(rangeUsed(tensor, head))})`;
  const clipped = of("clipped_frac") > 0;
  byId("chosen-summary").textContent = clipped
    ? `Loses ${percent(of("energy_lost"))} of its energy to clipping · clips ${percent(of("clipped_frac"))} of its values · ${largest}`
    : `Clips nothing · ${largest}`;
}

function move(event) {
  const { head, tensor } = state;
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
  if (event.key === "Escape") return chooseMostHarmed();
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    return choose(head, mapTensor);
  }
  if (!(event.key in steps)) return undefined;
  event.preventDefault();
  const [to, toHead] = steps[event.key];
  const found = page.heads.findIndex(([one, other]) => one === layersOf[to] && other === toHead);
  return choose(found < 0 ? head : found, mapTensor);
}

// The candidate that the address names; -1: none.
function addressed() {
  try {
    const name = decodeURIComponent(location.hash);
    return page.candidates.findIndex((one) => name === `#heads:${one.name}`);
  } catch {
    return -1; // not an address that this page made
  }
}

function followAddress() {
  const candidate = addressed();
  if (candidate < 0) return;
  byId("heads").scrollIntoView();
  chooseCandidate(candidate);
}

function connectControls() {
  byId("candidate").addEventListener("change", (event) => {
    const candidate = Number(event.target.value);
    history.replaceState(null, "", `#heads:${encodeURIComponent(page.candidates[candidate].name)}`);
    chooseCandidate(candidate);
  });
  byId("workload").addEventListener("change", (event) => {
    state.workload = Number(event.target.value);
    refresh();
  });
  byId("before")?.addEventListener("change", (event) => {
    state.before = Number(event.target.value);
    refresh();
  });
  for (const map of document.querySelectorAll(".heat")) map.addEventListener("keydown", move);
  for (const button of document.querySelectorAll("[data-pick]"))
    button.addEventListener("click", () => choose(...button.dataset.pick.split(" ").map(Number)));
  // The same link again is no change of the address.
  for (const link of document.querySelectorAll("[data-candidate]")) link.addEventListener("click", () => setTimeout(followAddress));
}

function watchSurroundings() {
  addEventListener("hashchange", followAddress);
  byId("theme").addEventListener("change", drawAll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  matchMedia("print").addEventListener("change", drawAll);
  for (const one of document.querySelectorAll("details")) one.addEventListener("toggle", drawAll);
  let waiting;
  new ResizeObserver(() => {
    clearTimeout(waiting);
    waiting = setTimeout(drawAll, 150);
  }).observe(document.querySelector("main"));
}

async function start() {
  await loadNumbers(FIRST);
  if (byId("before")) byId("before").value = state.before;
  connectControls();
  const candidate = addressed();
  if (candidate >= 0) state.candidate = candidate;
  Object.assign(state, mostHarmed());
  if (candidate >= 0) byId("heads").scrollIntoView();
  await refresh();
  watchSurroundings();
}

start();
