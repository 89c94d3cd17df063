// What of a page a reader may be unable to see, to name or to reach: [contrast, headings, controls].
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });

function rgba(color) {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = color;
  canvas.fillRect(0, 0, 1, 1);
  const [red, green, blue, alpha] = canvas.getImageData(0, 0, 1, 1).data;
  return [red, green, blue, alpha / 255];
}

const over = (top, under) => under.map((value, i) => top[3] * top[i] + (1 - top[3]) * value);

function background(element) {
  const layers = [];
  for (let at = element; at; at = at.parentElement) {
    layers.push(rgba(getComputedStyle(at).backgroundColor));
    if (layers.at(-1)[3] === 1) break;
  }
  return layers.reduceRight((under, top) => over(top, under), [255, 255, 255]);
}

// WCAG 2.1, relative luminance and contrast ratio.
function luminance(color) {
  const linear = color.map((value) => value / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}

const faint = new Set();
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
let read = 0;
while (texts.nextNode()) {
  const text = texts.currentNode.textContent.trim();
  const element = texts.currentNode.parentElement;
  const shown = element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  if (!text || !shown || element.closest("script, style, svg, mjx-assistive-mml")) continue;
  read += 1;
  const under = background(element);
  const style = getComputedStyle(element);
  const [dark, light] = [over(rgba(style.color), under), under].map(luminance).sort((a, b) => a - b);
  const size = parseFloat(style.fontSize);
  const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
  const ratio = (light + 0.05) / (dark + 0.05);
  if (ratio < (large ? 3 : 4.5)) faint.add(`${ratio.toFixed(2)}: ${text.slice(0, 40)}`);
}
if (!read) faint.add("no text was read");

const headings = [...document.querySelectorAll("article :is(h1, h2, h3, h4, h5, h6)")];
const levels = headings.map((heading) => Number(heading.tagName[1]));
const skipped = headings
  .filter((_, i) => levels[i] > (i ? levels[i - 1] : 0) + 1)
  .map((heading) => heading.textContent);

const named = (control) => control.ariaLabel || control.title || control.textContent.trim()
  || [...(control.labels || [])].some((label) => label.textContent.trim() || label.title);
const controls = [...document.querySelectorAll("input, select, button, article a[href]")]
  .filter((control) => control.checkVisibility({ visibilityProperty: true }))
  .filter((control) => !(named(control) || control.querySelector("img[alt]")) || control.tabIndex < 0)
  .map((control) => control.outerHTML.slice(0, 120));

return [[...faint], skipped, controls];
