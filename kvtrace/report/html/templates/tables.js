// The tables that follow what is chosen.
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
      percent(of("energy_lost")),
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
    row.classList.toggle("on", tensor === focused);
    return row;
  });
  byId("numbers").replaceChildren(...rows);
}

function showRegressions() {
  if (!byId("before")) return;
  const compared = comparedHeads();
  const worse = compared.filter((one) => one.is_worse).sort((a, b) => b.before - b.after - (a.before - a.after));
  const [before, after] = [state.before, state.candidate].map((one) => page.candidates[one].label);
  byId("before-finding").textContent =
    before === after
      ? "Before and after are the same scales"
      : `${worse.length.toLocaleString("en-US")} of ${amount(compared.length, "head")} lost quality from ${before} to ${after}`;
  byId("regressions").replaceChildren(
    ...worse.slice(0, 20).map((one) =>
      tableRow([headName(one.head, one.tensorIndex), decibel(one.before), decibel(one.after)], () =>
        choose(one.head, one.tensorIndex),
      ),
    ),
  );
  byId("regressions").closest("table").hidden = worse.length === 0;
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
    tensor: TENSORS[tensor].toLowerCase(),
    layer: `${layer}`,
    kv_head: `${kvHead}`,
  };
  for (const place of document.querySelectorAll("[data-query]")) {
    const names = place.dataset.parameters.split(" ").filter(Boolean);
    const parameters = names.map((name) => ` --param ${shellWord(`${name}=${known[name]}`)}`);
    place.textContent = `kvtrace query ${shellWord(page.run)} ${place.dataset.query}${parameters.join("")}`;
  }
}
