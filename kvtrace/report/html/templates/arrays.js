// Arrays of `html_arrays.py`, back to numbers. NaN: not measured.
async function unpackArray(packed) {
  const text = atob(packed.data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(inflated).arrayBuffer();
  return { shape: packed.shape, values: decodeArray(packed, buffer) };
}

function decodeArray(packed, buffer) {
  if (packed.kind === "f8") return new Float64Array(buffer);
  const codes = new Uint16Array(buffer);
  const values = new Float64Array(codes.length);
  const missing = 0xffff;
  const span = packed.kind === "log" ? Math.log(packed.high / packed.low) / packed.steps : 0;
  for (let i = 0; i < codes.length; i++) {
    const code = codes[i];
    if (code === missing) values[i] = NaN;
    else if (packed.kind === "log") values[i] = code === 0 ? 0 : packed.low * Math.exp((code - 1) * span);
    else if (packed.kind === "even") values[i] = packed.low + code * packed.step;
    else values[i] = code;
  }
  return values;
}

async function unpackAll(group) {
  const names = Object.keys(group);
  const arrays = await Promise.all(names.map((name) => unpackArray(group[name])));
  return Object.fromEntries(names.map((name, i) => [name, arrays[i]]));
}

// The value at an index of as many numbers as the array has axes.
function at(array, ...index) {
  let place = 0;
  for (let axis = 0; axis < index.length; axis++) place = place * array.shape[axis] + index[axis];
  return array.values[place];
}
