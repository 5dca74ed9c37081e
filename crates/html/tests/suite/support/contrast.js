// Every text and every drawn mark that contrasts less with what is behind it than WCAG's level AA asks for.
const channels = (color) => {
  const [red, green, blue, alpha = 1] = color.match(/[\d.]+/g).map(Number);
  return { red, green, blue, alpha };
};
const luminance = ({ red, green, blue }) => {
  const linear = (value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  };
  return 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
};
const contrast = (one, other) => {
  const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a);
  return (light + 0.05) / (dark + 0.05);
};
const behind = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const box = at.matches(".frame") && at.querySelector("rect");
    const color = channels(box ? getComputedStyle(box).fill : getComputedStyle(at).backgroundColor);
    if (color.alpha === 1) return color;
  }
  return channels("rgb(255, 255, 255)");
};
const weak = [];
const check = (element, color, least, what) => {
  const found = contrast(channels(color), behind(element));
  if (found < least) weak.push(`${what} ${element.tagName}.${element.getAttribute("class")} ${found.toFixed(2)}`);
};
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
let seen = 0;
while (texts.nextNode()) {
  const element = texts.currentNode.parentElement;
  if (!texts.currentNode.data.trim() || element.matches("script, style, title, svg svg.narrow *")) continue;
  const style = getComputedStyle(element);
  const isLarge = parseFloat(style.fontSize) >= 24;
  check(element, element.matches("svg text") ? style.fill : style.color, isLarge ? 3 : 4.5, "text");
  seen += 1;
}
for (const mark of document.querySelectorAll(".stacked rect, .bar rect:not(.rest), rect.requested")) {
  check(mark.closest("svg").parentElement, getComputedStyle(mark).fill, 3, "mark");
}
for (const mark of document.querySelectorAll("path.reserved, path.allocated, line.failed, line.iteration")) {
  check(mark.closest("section"), getComputedStyle(mark).stroke, 3, "line");
}
return { seen, weak };
