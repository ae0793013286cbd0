// What is chosen on the page, and the numbers that belong to it.
const TENSORS = ["K", "V"];
const page = JSON.parse(document.getElementById("page-data").textContent);
page.audit = page.audit.rows.map((row) =>
  Object.fromEntries(page.audit.columns.map((name, i) => [name, row[i]])),
);
const data = {};
const state = { candidate: page.initial.candidate, before: page.initial.before, workload: -1, head: 0, tensor: 0 };

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

// The largest magnitude over what the scale covers.
function rangeUsed(tensor, head, workload = state.workload) {
  const covered = at(data.scales.covered_amax, state.candidate, tensor, head);
  return measured("max_abs", state.candidate, tensor, head, workload) / covered;
}

function requestsOf(head, workload = state.workload) {
  return workload < 0 ? at(data.requests.by_head, head) : at(data.requests.by_workload, head, workload);
}

function isFew(requests) {
  return requests < page.minRequests;
}

// Whether the chosen scales clip anything; if not, maps show the range used. Asked for every cell.
const clipping = new Map();

function clips() {
  if (!clipping.has(state.candidate)) {
    const lost = (tensor, head) => measured("energy_lost", state.candidate, tensor, head, -1);
    clipping.set(state.candidate, [0, 1].some((tensor) => page.heads.some((_, head) => lost(tensor, head) > 0)));
  }
  return clipping.get(state.candidate);
}

// The head that loses most to clipping under the chosen scales, else the one closest to the edge.
function mostHarmed() {
  if (state.candidate === page.initial.candidate && page.initial.harmed) {
    const [head, tensor] = page.initial.harmed;
    return { head, tensor };
  }
  let most = { head: 0, tensor: 0, key: [-1, -1] };
  for (const tensor of [0, 1]) {
    for (let head = 0; head < page.heads.length; head++) {
      const key = [measured("energy_lost", state.candidate, tensor, head, -1) || 0, rangeUsed(tensor, head, -1) || 0];
      if (key[0] > most.key[0] || (key[0] === most.key[0] && key[1] > most.key[1])) most = { head, tensor, key };
    }
  }
  return most;
}

function headName(head, tensor) {
  const [layer, kvHead] = page.heads[head];
  return `layer ${layer} head ${kvHead} ${TENSORS[tensor]}`;
}
