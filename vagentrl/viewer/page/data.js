// Data come from blocks inside the page, or from scripts beside it: a page opened from a disk may
// not fetch.

const KEPT_CHUNKS = 200;
const IMAGE_NAME = /^[0-9a-f]{32}\.png$/;
const chunks = new Map(); // promises by name, the least recently used first
const receivers = new Map();

/** Called by the data scripts. */
function receiveData(name, value) {
  receivers.get(name)?.(value);
}

/** A block of data inside the page, or null. */
function inlineData(name) {
  for (const block of document.querySelectorAll("script[data-name]")) {
    if (block.dataset.name === name) return JSON.parse(block.textContent);
  }
  return null;
}

function loadScript(name, query = "") {
  return new Promise((resolve) => {
    const script = document.createElement("script");
    const settle = (value) => {
      receivers.delete(name);
      script.remove();
      resolve(value);
    };
    receivers.set(name, settle);
    const missing = `data/${name}.js is missing or damaged; was it dropped meanwhile? Open the page again`;
    script.onerror = () => settle({ problem: missing });
    script.onload = () => receivers.has(name) && settle({ problem: missing });
    script.src = `data/${encodeURIComponent(name)}.js${query}`;
    document.head.append(script);
  });
}

/** The data of this name, as a promise. */
function load(name) {
  let chunk = chunks.get(name);
  chunks.delete(name);
  if (chunk === undefined) {
    const value = inlineData(name);
    chunk = value === null ? loadScript(name) : Promise.resolve(value);
  }
  chunks.set(name, chunk);
  if (chunks.size > KEPT_CHUNKS) chunks.delete(chunks.keys().next().value);
  return chunk;
}

let inlineImages;

/** Keep images that came with an answer of the server. */
function keepPictures(pictures) {
  inlineImages ??= new Map(Object.entries(inlineData("images") ?? {}));
  for (const [name, address] of Object.entries(pictures)) inlineImages.set(name, address);
}

/** The index as it is now; everything else is then loaded again too. */
async function loadIndexAgain() {
  const index = await loadScript("index", "?again");
  if (!index.problem) chunks.clear();
  return index;
}

/** An image, or a note that it is missing. */
function picture(name) {
  keepPictures({});
  if (!IMAGE_NAME.test(name)) return make("span", "faint", "(no such image)");
  const image = document.createElement("img");
  image.loading = "lazy";
  image.alt = "what the agent saw";
  image.onerror = () => image.replaceWith(make("span", "faint", "(the image is missing)"));
  image.src = inlineImages.get(name) ?? `images/${name}`;
  return image;
}

/** The whole trajectory of a row of the list: {turns, final, …}, or {problem}. */
async function trajectoryOf(row) {
  const { chunks: names, columns } = state.index;
  const chunk = await load(names[columns.chunk[row]]);
  if (chunk.problem) return { problem: chunk.problem };
  return { ...chunk.trajectories[columns.place[row]], vocabulary: chunk.vocabulary };
}
