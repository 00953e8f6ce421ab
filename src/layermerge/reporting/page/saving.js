// What leaves the page: pictures as SVG and PNG, tables as CSV, code to the clipboard.

const DRAWN = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "fill-opacity", "font-size", "font-weight", "font-family", "vector-effect"];

function download(content, type, name) {
  const link = el("a", { href: URL.createObjectURL(new Blob([content], { type })), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** A copy that needs no style sheet: what the page says of looks is written into each element. */
function standalone(picture) {
  const copy = picture.cloneNode(true), originals = [picture, ...all("*", picture)];
  [copy, ...all("*", copy)].forEach((node, place) => {
    const style = getComputedStyle(originals[place]);
    for (const name of DRAWN) node.setAttribute(name, style.getPropertyValue(name));
    for (const name of ["class", "aria-label", "role", "id"]) node.removeAttribute(name);
    if (node.tagName === "svg") node.setAttribute("overflow", style.overflow);
  });
  return copy;
}

/** The picture with its legend below, on paper of the page's colour. */
function pictureOf(figure) {
  const source = figure.querySelector("svg"), { width, height } = source.getBoundingClientRect();
  const rows = all("li", figure), pitch = 22, tall = height + pitch * rows.length + 8;
  const paper = getComputedStyle(document.body), ink = paper.color;
  const whole = svg("svg", { xmlns: "http://www.w3.org/2000/svg", width, height: tall, viewBox: `0 0 ${width} ${tall}` });
  whole.append(svg("rect", { width, height: tall, fill: paper.backgroundColor }));
  const copy = standalone(source);
  fill(copy, { width, height }, []);
  whole.append(copy);
  rows.forEach((row, place) => {
    const y = height + 4 + pitch * place, sample = standalone(row.querySelector("svg"));
    fill(sample, { x: 0, y, width: 30, height: 18 }, []);
    const text = { x: 40, y: y + 13, "font-size": 12, "font-family": paper.fontFamily, fill: ink };
    whole.append(sample, svg("text", text, row.textContent));
  });
  return { text: new XMLSerializer().serializeToString(whole), width, height: tall };
}

async function savePng(figure) {
  const { text, width, height } = pictureOf(figure), sharp = 2;
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = el("canvas", { width: Math.round(sharp * width), height: Math.round(sharp * height) });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((content) => download(content, "image/png", `${figure.dataset.file}.png`), "image/png");
}

function addPictureTools(figure) {
  const name = figure.querySelector("svg").getAttribute("aria-label");
  const saveSvg = () => download(pictureOf(figure).text, "image/svg+xml", `${figure.dataset.file}.svg`);
  figure.append(el("div", { class: "tools" }, button("SVG", `Save as SVG: ${name}`, saveSvg), button("PNG", `Save as PNG: ${name}`, () => savePng(figure))));
}

async function copyCode(press) {
  const code = press.parentElement.querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch { // a page from a file may not be allowed to
    getSelection().selectAllChildren(code);
    document.execCommand("copy");
  }
  press.textContent = "Copied";
  setTimeout(() => { press.textContent = "Copy"; }, 1500);
}
