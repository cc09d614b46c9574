// The graph of the groups, in the layers and rows that the service computed.
import { useEffect, useRef, useState } from "preact/hooks";
import cytoscape from "cytoscape";
import { theme } from "../theme.js";
import { colourOf, counted, iconText, leading, wordOf } from "./states.jsx";
import { cut, list, number, plural, str } from "./text.jsx";

const WIDE = 196;
const HIGH = 52;
const LAYER = 246;
const PLACE = 72;
export const MOST = 1500; // more boxes are of no use to the eye, and take seconds to draw

const paint = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** The groups that are drawn: all, or those that matter most. */
export function chosen(groups, path) {
  if (groups.length <= MOST) return groups.map((_, index) => index);
  const critical = new Set(path);
  const weight = (index) => {
    const { states } = groups[index];
    return (states?.failed ? 4 : 0) + (critical.has(index) ? 2 : 0) + (states?.active ? 1 : 0);
  };
  return groups
    .map((_, index) => [weight(index), index])
    .sort(([one, first], [other, second]) => other - one || first - second)
    .slice(0, MOST)
    .map(([, index]) => index);
}

export function title(group) {
  const many = group.array ? group.array.elements : group.count;
  return { name: group.label ?? group.key, many: many > 1 ? `×${number(many)}` : "" };
}

/** The counts of a group; those of an array are its elements. */
export function statesOf(group) {
  const { array } = group;
  if (!array) return group.states ?? {};
  const { elements, completed = 0, failed = 0, skipped = 0, running } = array;
  const rest = Math.max(0, elements - completed - failed - skipped - (running ?? 0));
  const isOver = ["failed", "cancelled", "completed"].includes(leading(group.states));
  return { completed, failed, skipped, active: running ?? 0, [isOver ? "cancelled" : running === undefined ? "open" : "waiting"]: rest };
}

/** The state that a box has as a whole: an array may tolerate failed elements. */
export const leadOf = (group) => leading(group.array ? group.states : statesOf(group));

function words(group) {
  const counts = counted(statesOf(group));
  if (counts.length === 1 && counts[0][1] === 1) return wordOf(counts[0][0]);
  return counts
    .sort(([one], [other]) => (other === "failed") - (one === "failed"))
    .slice(0, 2)
    .map(([state, count]) => `${number(count)} ${wordOf(state)}`)
    .join(", ");
}

/** What a box has no room for: all counts, and how many elements of an array run at this moment. */
export function wholly(group) {
  const counts = counted(statesOf(group)).map(([state, count]) => `${number(count)} ${wordOf(state)}`);
  const { array } = group;
  const now = array?.running !== undefined && group.states?.active ? `. Of ${plural(array.elements, "element")}, ${number(array.running)} ${array.running === 1 ? "runs" : "run"} now` : "";
  return `${str(group.label ?? group.key)}: ${counts.join(", ")}${now}`;
}

const pictures = new Map();

/** The picture of a box: the icon of its state, and a bar where it has several nodes. */
function picture(group, colours) {
  const counts = counted(statesOf(group));
  const total = counts.reduce((sum, [, count]) => sum + count, 0) || 1;
  const lead = leadOf(group);
  const isMany = title(group).many !== "";
  const widths = isMany ? counts.map(([state, count]) => [colourOf(state), Math.max(2, Math.round((count / total) * 180))]) : [];
  const key = JSON.stringify([lead, widths, theme.value, colours.ground]);
  if (!pictures.has(key)) {
    if (pictures.size > 2000) pictures.clear();
    let left = 8;
    const bar = widths.map(([colour, width]) => {
      const rect = `<rect x="${left}" y="42" width="${width}" height="6" fill="${colours[colour]}"/>`;
      left += width;
      return rect;
    });
    const icon = iconText(lead, colours[colourOf(lead)], colours.ground);
    pictures.set(key, `data:image/svg+xml,${encodeURIComponent(
      `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDE}" height="${HIGH}" viewBox="0 0 ${WIDE} ${HIGH}">` +
      `<g transform="translate(9 12)">${icon}</g>${bar.join("")}</svg>`)}`);
  }
  return pictures.get(key);
}

function palette() {
  const names = ["completed", "failed", "skipped", "active", "waiting", "delayed", "cancelled", "blocked", "unknown"];
  const colours = Object.fromEntries(names.map((name) => [name, paint(name) || paint("blocked")]));
  return { ...colours, ground: paint("ground"), text: paint("text"), line: paint("edge"), accent: paint("accent") };
}

function box(group, isCritical, colours) {
  const { name, many } = title(group);
  const lead = leadOf(group);
  const room = 21 - many.length;
  return {
    text: `${cut(name, Math.max(8, room))} ${many}\n${cut(words(group), 25)}`,
    picture: picture(group, colours),
    border: colours[colourOf(lead)],
    thick: isCritical || lead === "failed" ? 3 : 1,
    dash: lead === "failed" && !group.causes ? "dashed" : "solid",
  };
}

const styles = (colours, isLarge) => [
  {
    selector: "node",
    style: {
      shape: "round-rectangle", width: WIDE, height: HIGH, label: "data(text)", color: colours.text,
      "background-color": colours.ground, "background-image": "data(picture)", "background-fit": "none",
      "background-width": WIDE, "background-height": HIGH, "border-color": "data(border)", "border-width": "data(thick)", "border-style": "data(dash)",
      "font-family": "system-ui, sans-serif", "font-size": 12, "text-wrap": "wrap", "text-justification": "left",
      "text-valign": "center", "text-halign": "right", "text-margin-x": 32 - WIDE, "text-margin-y": -3, "line-height": 1.25, "min-zoomed-font-size": 5,
    },
  },
  { selector: "node.far", style: { "background-color": "data(border)", "background-image-opacity": 0, "text-opacity": 0 } },
  { selector: "node:selected", style: { "background-color": paint("surface"), "border-width": 4, "border-color": colours.accent } },
  { selector: "node:active", style: { "overlay-opacity": 0.08 } },
  {
    selector: "edge",
    style: {
      width: 1.5, "line-color": colours.line, "target-arrow-color": colours.line, opacity: isLarge ? 0.5 : 0.9,
      ...(isLarge ? { "curve-style": "haystack", "haystack-radius": 0 } : {
        "curve-style": "unbundled-bezier", "control-point-distances": "data(bend)", "control-point-weights": "data(weights)", "edge-distances": "endpoints",
        "target-arrow-shape": "triangle", "source-endpoint": "50% 0%", "target-endpoint": "-50% 0%",
      }),
    },
  },
  { selector: "edge.critical", style: { width: 4, "line-color": colours.accent, "target-arrow-color": colours.accent, opacity: 1, "z-index": 2 } },
];

function elements(groups, path, colours) {
  const shown = chosen(groups, path);
  const has = new Set(shown);
  const critical = new Map(path.map((index, place) => [index, path[place - 1]]));
  const nodes = shown.map((index) => ({
    data: { id: `${index}`, ...box(groups[index], critical.has(index), colours) },
    position: at(groups[index]),
  }));
  const edges = shown.flatMap((index) =>
    list(groups[index].after).filter((from) => has.has(from)).map((from) => {
      return {
        data: { source: `${from}`, target: `${index}`, ...curve(at(groups[from]), at(groups[index])) },
        classes: critical.has(index) && critical.get(index) === from ? "critical" : "",
      };
    }));
  return { nodes, edges };
}

/**
 * Two control points, relative to the straight line, that let an edge leave and arrive horizontally. It changes its row
 * just before its target: between the layers before it there may be boxes.
 */
function curve(from, to) {
  const wide = to.x - from.x - WIDE;
  const high = to.y - from.y;
  const length = Math.hypot(wide, high) || 1;
  const turn = Math.max(wide / 2, wide - (LAYER - WIDE) / 2);
  const points = [[turn, 0], [turn, high]];
  return {
    weights: points.map(([x, y]) => ((x * wide + y * high) / length ** 2).toFixed(4)).join(" "),
    bend: points.map(([x, y]) => ((y * wide - x * high) / length).toFixed(2)).join(" "),
  };
}

const at = (group) => ({ x: (Number(group.layer) || 0) * LAYER, y: (Number(group.place) || 0) * PLACE });

/** Show all of it if that is readable, otherwise what needs attention. */
function show(cy, groups) {
  cy.fit(undefined, 24);
  if (cy.zoom() > 1) cy.zoom(1), cy.center();
  if (cy.zoom() >= 0.5) return;
  const failed = groups.findIndex((group) => group.causes > 0 || group.states?.failed);
  const running = groups.findIndex((group) => group.states?.active);
  focus(cy, failed >= 0 ? failed : running >= 0 ? running : 0);
}

/** Draw the boxes anew that have changed. */
function refresh({ cy, colours }, { groups, path }) {
  const critical = new Set(path);
  cy.batch(() => {
    groups.forEach((group, index) => {
      const node = cy.getElementById(`${index}`);
      if (!node.length) return;
      const next = box(group, critical.has(index), colours);
      if (next.text !== node.data("text") || next.picture !== node.data("picture")) node.data(next);
    });
  });
}

/** From far away, boxes are filled with the colour of their state instead of an icon and a text. */
function farOrNear(cy) {
  const isFar = cy.zoom() < 0.3;
  if (isFar === cy.scratch("isFar")) return;
  cy.scratch("isFar", isFar);
  cy.batch(() => cy.nodes().toggleClass("far", isFar));
}

/** As high as the graph needs at its width, within the limits of the style sheet. */
function fitHeight(element, groups) {
  const most = (name) => groups.reduce((found, group) => Math.max(found, Number(group[name]) || 0), 0) + 1;
  const zoom = Math.min(1, Math.max(0.5, element.clientWidth / (most("layer") * LAYER + 48)));
  element.style.height = `${Math.round(most("place") * PLACE * zoom + 64)}px`;
}

function focus(cy, index) {
  const node = cy.getElementById(`${index}`);
  if (!node.length) return;
  cy.zoom(Math.max(cy.zoom(), 0.7));
  cy.center(node);
}

export function Graph({ groups, path, selected, onOpen }) {
  const container = useRef();
  const graph = useRef(null);
  const [isReady, setReady] = useState(false);
  const shape = `${groups.length} ${theme.value} ${groups.map((one) => list(one.after).length).reduce((sum, one) => (sum * 31 + one) % 1e9, 7)}`;
  const changing = useRef(null);
  const latest = useRef();
  latest.current = { groups, onOpen, path };

  useEffect(() => {
    const colours = palette();
    fitHeight(container.current, groups);
    const parts = elements(groups, path, colours);
    const isLarge = parts.nodes.length > 500 || parts.edges.length > 1000;
    const cy = cytoscape({
      container: container.current,
      elements: parts,
      style: styles(colours, isLarge),
      layout: { name: "preset" },
      minZoom: 0.01,
      maxZoom: 2,
      autoungrabify: true,
      boxSelectionEnabled: false,
      hideEdgesOnViewport: isLarge,
      textureOnViewport: isLarge,
      pixelRatio: isLarge ? 1 : "auto",
    });
    cy.on("tap", "node", (event) => latest.current.onOpen(Number(event.target.id())));
    cy.on("mouseover", "node", (event) => {
      container.current.style.cursor = "pointer";
      container.current.title = wholly(latest.current.groups[Number(event.target.id())]);
    });
    cy.on("mouseout", "node", () => {
      container.current.style.cursor = "";
      container.current.title = "";
    });
    cy.on("zoom", () => farOrNear(cy));
    show(cy, groups);
    farOrNear(cy);
    graph.current = { cy, colours };
    setReady(true);
    return () => {
      graph.current = null;
      cy.destroy();
    };
  }, [shape]);

  useEffect(() => {
    // A large graph takes longer to draw, so it changes less often.
    const wait = groups.length > 500 ? 2000 : 0;
    if (changing.current) return;
    changing.current = setTimeout(() => {
      changing.current = null;
      if (graph.current) refresh(graph.current, latest.current);
    }, wait);
  }, [groups]);

  useEffect(() => {
    const { cy } = graph.current ?? {};
    if (!cy) return;
    cy.$(":selected").unselect();
    if (selected >= 0) cy.getElementById(`${selected}`).select();
  }, [selected, isReady, shape]);

  // The wheel scrolls the page until the graph was clicked.
  const isHeld = useRef(false);
  useEffect(() => {
    const element = container.current;
    const wheel = (event) => isHeld.current || event.ctrlKey || event.stopPropagation();
    element.addEventListener("wheel", wheel, { capture: true });
    return () => element.removeEventListener("wheel", wheel, { capture: true });
  }, []);

  const zoom = (factor) => {
    const { cy } = graph.current;
    cy.zoom({ level: cy.zoom() * factor, renderedPosition: { x: cy.width() / 2, y: cy.height() / 2 } });
  };
  const first = groups.findIndex((group) => group.causes > 0);
  return (
    <div class="graph">
      <div class="toolbar" role="group" aria-label="View of the graph">
        <button type="button" onClick={() => zoom(1.4)}>Zoom in</button>
        <button type="button" onClick={() => zoom(1 / 1.4)}>Zoom out</button>
        <button type="button" onClick={() => graph.current.cy.fit(undefined, 24)}>Show all</button>
        {first >= 0 && <button type="button" onClick={() => focus(graph.current.cy, first)}>Go to the first failure</button>}
      </div>
      <div class="canvas" ref={container} role="img"
        aria-label={`Graph of ${plural(groups.length, "group")}. The list of groups has the same content.`}
        onPointerDown={() => (isHeld.current = true)} onPointerLeave={() => (isHeld.current = false)} />
      <p class="quiet">
        Drag to move, click a box to open it. Click the graph before zooming with the wheel. Thick: the critical path.
        {groups.length > MOST && ` The graph shows ${number(MOST)} of ${number(groups.length)} groups: failed ones, running ones and the critical path first. The list has all.`}
      </p>
    </div>
  );
}
