// The rows of every chart for what is chosen. Each has `text` (for screen readers) and `tip` (name, value pairs).
const rowsOf = {
  heatMap(tensor, cellWidth) {
    const bins = page.bins[mapKind()];
    const cells = page.heads.map(([layer, kvHead], head) => {
      const value = mapValue(tensor, head);
      const letter = letterOf(value, bins);
      const few = isFew(requestsOf(head));
      const fits = mapKind() === "loss" && "ox#".includes(letter) && cellWidth >= 26;
      return {
        head,
        tensor,
        layer,
        kv_head: kvHead,
        letter,
        label: fits ? percent(value).replace(" %", "") : "",
        is_few: few,
        text: `${headName(head, tensor)}: ${mapWords(value)}${few ? ", too few requests to tell" : ""}`,
        tip: headTip(head, tensor),
      };
    });
    const [layer, kvHead] = page.heads[state.head];
    return { cells, chosen: state.tensor === tensor ? [{ layer, kv_head: kvHead }] : [] };
  },

  byPosition(name, floor) {
    const isShare = name !== "sqnr_db";
    const show = (value) => (isShare ? percent(value) : `${decibel(value)} dB`);
    const place = state.head;
    const tensor = state.tensor;
    const strata = [];
    // Upper ends of intervals around nothing would be all that there is to see.
    const isNothing = isShare && at(data.byHead[name], state.candidate, tensor, place) === 0;
    for (const [stratum, [phase, from, order]] of isNothing ? [] : page.strata.entries()) {
      const position = page.positions[order];
      const value = at(data.byPosition[name], state.candidate, tensor, place, stratum);
      if (Number.isNaN(value)) continue;
      const requests = at(data.requests.by_position, place, stratum);
      const low = isShare ? at(data.byPosition[`${name}_low`], state.candidate, tensor, place, stratum) : NaN;
      const high = isShare ? at(data.byPosition[`${name}_high`], state.candidate, tensor, place, stratum) : NaN;
      const few = isFew(requests);
      const interval = few ? "too few requests to tell" : `${percent(low)} to ${percent(high)}`;
      strata.push({
        position: from,
        order,
        tensor: TENSORS[tensor],
        phase,
        series: `${TENSORS[tensor]} ${phase}`,
        value: isShare ? Math.max(value, floor) : value,
        shown_low: isShare && !few ? Math.max(low, floor) : null,
        shown_high: isShare && !few ? Math.max(high, floor) : null,
        text: `${TENSORS[tensor]}, ${phase}, positions ${position}: ${show(value)}`,
        tip: [
          [`${TENSORS[tensor]} ${phase}`, `positions ${position}`],
          [isShare ? "share of tokens" : "SQNR", show(value)],
          ...(isShare ? [["95 % interval", interval]] : []),
          ["requests", requests.toLocaleString("en-US")],
        ],
      });
    }
    return { strata, calibrated: page.candidates[state.candidate].calibrated };
  },

  bands(workload) {
    const { head, tensor } = state;
    const bands = [];
    page.octaves.forEach(([from, order], octave) => {
      const position = page.positions[order];
      const [p50, p90, p99, max] = page.bandNames.map((name) => at(data.bands[name], tensor, head, workload, octave));
      if (Number.isNaN(max) || max <= 0) return;
      bands.push({
        position: from,
        order,
        tensor: TENSORS[tensor],
        p50,
        p90,
        p99,
        max,
        text: `positions ${position}: half below ${magnitude(p50)}, largest ${magnitude(max)}`,
        tip: [
          [headName(head, tensor), `positions ${position}`],
          ["half of the tokens up to", magnitude(p50)],
          ["90 % up to", magnitude(p90)],
          ["99 % up to", magnitude(p99)],
          ["largest", magnitude(max)],
        ],
      });
    });
    const covered = at(data.scales.covered_amax, state.candidate, tensor, head);
    return { bands, covered: covered > 0 ? [{ amax: covered }] : [], extent: [bandExtent(head, tensor, covered)] };
  },

  clipFlush() {
    const { head, tensor } = state;
    const floor = page.floors.sweep;
    const amax = at(data.sweep.amax, tensor, head);
    const curve = [];
    for (const [name, measure] of Object.entries(SWEPT)) {
      page.multiples.forEach((multiple, step) => {
        const share = at(data.sweep[name], tensor, head, step);
        if (Number.isNaN(share)) return;
        curve.push({ multiple, measure, value: Math.max(share, floor), tensor: TENSORS[tensor] });
      });
    }
    const marks = [];
    const few = page.candidates.length <= 8;
    page.candidates.forEach((candidate, c) => {
      const covered = at(data.scales.covered_amax, c, tensor, head);
      if (!(covered > 0 && amax > 0)) return;
      const multiple = covered / amax;
      for (const [name, measure] of Object.entries(SWEPT)) {
        const value = sweptAt(name, c, tensor, head);
        if (Number.isNaN(value)) continue;
        marks.push({
          candidate: candidate.label,
          is_current: c === state.candidate,
          multiple,
          measure,
          name_at: name === "clipped_frac" && (few || c === state.candidate) ? 0.6 * 4 ** -(few ? c : 0) : null,
          value: Math.max(value, floor),
          text: `${candidate.label}, ${magnitude(multiple)} times the scale that just covers: ${measure} ${percent(value)}`,
          tip: [
            ["candidate", candidate.label],
            ["times the scale that just covers", magnitude(multiple)],
            ["covers", magnitude(covered)],
            [measure, percent(value)],
          ],
        });
      }
    });
    return { curve, marks };
  },

  beforeAfter() {
    const { low, high } = page.sqnr;
    const heads = comparedHeads().map((one) => ({
      ...one,
      tensor: TENSORS[one.tensorIndex],
      is_chosen: state.head === one.head && state.tensor === one.tensorIndex,
      text: `${headName(one.head, one.tensorIndex)}: ${decibel(one.before)} to ${decibel(one.after)} dB`,
      tip: [
        [headName(one.head, one.tensorIndex), one.is_worse ? "lost quality" : ""],
        [`before: ${page.candidates[state.before].label}`, `${decibel(one.before)} dB`],
        [`after: ${page.candidates[state.candidate].label}`, `${decibel(one.after)} dB`],
      ],
    }));
    return { heads, diagonal: [{ at: low }, { at: high }] };
  },

  scales(tensor) {
    const layers = [];
    for (const row of page.audit) {
      if (row.tensor !== TENSORS[tensor] || row.candidate !== state.candidate || row.source !== 0) continue;
      const kinds = [
        ["candidate", row.min_scale, row.max_scale],
        ["in effect", row.min_effective_scale, row.max_effective_scale],
        ["just covers", row.optimal, row.optimal],
      ];
      for (const [kind, low, high] of kinds) {
        if (!(low > 0)) continue;
        const range = low === high ? magnitude(high) : `${magnitude(low)} to ${magnitude(high)}`;
        layers.push({
          layer: row.layer,
          kind,
          low,
          high,
          text: `layer ${row.layer}, ${kind}: ${range}`,
          tip: [
            ["layer", `${row.layer} ${row.tensor}`],
            [kind, range],
          ],
        });
      }
    }
    return { layers };
  },
};

// The shares of a sweep, by the names of the chart's measures.
const SWEPT = {
  clipped_frac: "values clipped",
  flushed_frac: "values flushed to 0",
  relative_error: "squared error / signal",
};

// What was measured at a candidate's own scales.
function sweptAt(name, candidate, tensor, head) {
  if (name !== "relative_error") return at(data.byHead[name], candidate, tensor, head);
  return 10 ** (-at(data.byHead.sqnr_db, candidate, tensor, head) / 10);
}

// Maps show what clipping costs; where nothing clips, how much of the range is used.
function mapKind() {
  return clips() ? "loss" : "range";
}

function mapValue(tensor, head) {
  return mapKind() === "loss" ? measured("energy_lost", state.candidate, tensor, head) : rangeUsed(tensor, head);
}

function mapWords(value) {
  return mapKind() === "loss" ? `loses ${percent(value)} of its energy to clipping` : `uses ${times(value)} of its range`;
}

// The letter of a value's bin, as `bin_of` of bins.py says it.
function letterOf(value, bins) {
  if (!(value > 0)) return ".";
  return (bins.find(([, below]) => value < below) ?? ["#"])[0];
}

function headTip(head, tensor) {
  const values = (name) => measured(name, state.candidate, tensor, head);
  const covered = at(data.scales.covered_amax, state.candidate, tensor, head);
  return [
    [headName(head, tensor), state.workload < 0 ? "all workloads" : page.workloads[state.workload]],
    ["energy lost to clipping", percent(values("energy_lost"))],
    ["values clipped", percent(values("clipped_frac"))],
    ["SQNR", `${decibel(values("sqnr_db"))} dB`],
    ["largest / covered", `${magnitude(values("max_abs"))} / ${magnitude(covered)}`],
    ["requests", requestsOf(head).toLocaleString("en-US")],
  ];
}

function bandExtent(head, tensor, covered) {
  let low = covered > 0 ? covered : Infinity;
  let high = covered > 0 ? covered : 0;
  page.workloads.forEach((_, workload) =>
    page.octaves.forEach((__, octave) => {
      const p50 = at(data.bands.absmax_p50, tensor, head, workload, octave);
      const max = at(data.bands.absmax_max, tensor, head, workload, octave);
      if (p50 > 0) low = Math.min(low, p50);
      if (max > 0) high = Math.max(high, max);
    }),
  );
  return { low: low * 0.9, high: high * 1.1 };
}

// Every head under both candidates, in all workloads; a twentieth of a dB is no loss.
function comparedHeads() {
  const compared = [];
  for (const tensorIndex of [0, 1]) {
    for (let head = 0; head < page.heads.length; head++) {
      const before = measured("sqnr_db", state.before, tensorIndex, head, -1);
      const after = measured("sqnr_db", state.candidate, tensorIndex, head, -1);
      if (Number.isNaN(before) || Number.isNaN(after)) continue;
      compared.push({ head, tensorIndex, before, after, is_worse: before - after > 0.05 });
    }
  }
  return compared;
}
