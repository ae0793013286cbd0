// Numbers as the text report prints them (`wording.py`); a browser test holds the two together.
function percent(share) {
  if (share === null || Number.isNaN(share)) return "–";
  if (share === 0) return "0";
  if (share < 1e-5) return "<0.001 %";
  if (share > 0.999 && share < 1) return ">99.9 %";
  return `${Number((share * 100).toPrecision(share < 1e-4 ? 2 : 3))} %`;
}

function decibel(value) {
  return Number.isNaN(value) ? "–" : value.toFixed(1);
}

function magnitude(value) {
  return Number.isNaN(value) ? "–" : `${Number(value.toPrecision(4))}`;
}

function amount(number, noun) {
  return `${number.toLocaleString("en-US")} ${noun}${number === 1 ? "" : "s"}`;
}

// One word of a POSIX shell.
function shellWord(text) {
  return /^[A-Za-z0-9_.,:=/-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
