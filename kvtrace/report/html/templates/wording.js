// Numbers as the text report prints them (`figures.py`); a browser test holds the two together.
function percent(share) {
  if (share === null || Number.isNaN(share)) return "–";
  if (share === 0) return "0";
  if (share < 1e-5) return "<0.001 %";
  if (share > 0.999 && share < 1) return ">99.9 %";
  if (share > 0.99 && share < 1) return `${rounded(share * 100, 3).toFixed(1)} %`;
  return `${twoDigits(share * 100)} %`;
}

function times(ratio) {
  return ratio === null || Number.isNaN(ratio) ? "–" : `${twoDigits(ratio)} ×`;
}

function twoDigits(value) {
  const shown = rounded(value, 2);
  if (shown >= 100) return rounded(value, Math.floor(Math.log10(value)) + 1).toLocaleString("en-US");
  return shown >= 10 ? shown.toLocaleString("en-US") : shown.toPrecision(2);
}

function decibel(value) {
  if (Number.isNaN(value)) return "–";
  const digits = Math.abs(value) < 1 ? 1 : Math.floor(Math.log10(Math.abs(value))) + 2;
  return rounded(value, digits).toFixed(1);
}

function magnitude(value) {
  return Number.isNaN(value) ? "–" : `${rounded(value, 4)}`;
}

// To so many significant digits, a half to the even digit: as Python rounds, while toPrecision rounds it up.
function rounded(value, digits) {
  const [mantissa, exponent] = value.toExponential(100).split("e");
  const shown = mantissa.replace(/[-.]/g, "");
  const isHalf = /^50*$/.test(shown.slice(digits));
  if (!isHalf || Number(shown[digits - 1]) % 2 === 1) return Number(value.toPrecision(digits));
  return Math.sign(value) * Number(`${shown[0]}.${shown.slice(1, digits)}e${exponent}`);
}

function amount(number, noun) {
  return `${number.toLocaleString("en-US")} ${noun}${number === 1 ? "" : "s"}`;
}

// One word of a POSIX shell.
function shellWord(text) {
  return /^[A-Za-z0-9_.,:=/-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
