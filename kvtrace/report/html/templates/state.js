// What is chosen on the page, and the numbers that belong to it.
const TENSORS = ["K", "V"];
const page = JSON.parse(document.getElementById("page-data").textContent);
page.audit = page.audit.rows.map((row) =>
  Object.fromEntries(page.audit.columns.map((name, i) => [name, row[i]])),
);
const data = {};
const state = {
  candidate: page.initial.candidate,
  before: page.initial.before,
  measure: "clipped_frac",
  workload: -1,
  tensors: "both",
  // The chosen head; null: all heads, and the worst one where a chart shows a single head.
  head: null,
  tensor: 0,
};

// The heat maps need the first, every chart the others too: a large report draws its maps before it unpacks all.
const FIRST = ["byHead", "byWorkload", "requests", "scales"];
const OTHERS = ["byPosition", "bands", "sweep"];

let others = null;
const loadOthers = () => (others ??= loadNumbers(OTHERS));

async function loadNumbers(groups) {
  const loaded = await Promise.all(groups.map((group) => unpackAll(page.arrays[group])));
  groups.forEach((group, i) => (data[group] = loaded[i]));
}

function measured(name, candidate, tensor, head, workload = state.workload) {
  return workload < 0
    ? at(data.byHead[name], candidate, tensor, head)
    : at(data.byWorkload[name], candidate, tensor, head, workload);
}

function requestsOf(head, workload = state.workload) {
  return workload < 0 ? at(data.requests.by_head, head) : at(data.requests.by_workload, head, workload);
}

function isFew(requests) {
  return requests < page.minRequests;
}

function shownTensors() {
  return state.tensors === "both" ? [0, 1] : [state.tensors === "k" ? 0 : 1];
}

// How bad a value of the current measure is; larger is worse.
function badness(value, name = state.measure) {
  if (Number.isNaN(value)) return -Infinity;
  return name === "sqnr_db" ? -value : value;
}

// The worst head by clipping, then by what is out of range, among the tensors that are shown.
function worstHead() {
  let worst = { head: 0, tensor: shownTensors()[0], key: [-1, -1] };
  for (const tensor of shownTensors()) {
    for (let head = 0; head < page.heads.length; head++) {
      const key = ["clipped_frac", "out_of_range_frac"].map((name) =>
        Math.max(measured(name, state.candidate, tensor, head) || 0, 0),
      );
      if (key[0] > worst.key[0] || (key[0] === worst.key[0] && key[1] > worst.key[1])) worst = { head, tensor, key };
    }
  }
  return worst;
}

// The head that single-head charts show.
function focus() {
  return state.head === null ? worstHead() : { head: state.head, tensor: state.tensor };
}

function headName(head, tensor) {
  const [layer, kvHead] = page.heads[head];
  return `layer ${layer} head ${kvHead} ${TENSORS[tensor]}`;
}

function showMeasure(value, name = state.measure) {
  return name === "sqnr_db" ? `${decibel(value)} dB` : percent(value);
}
