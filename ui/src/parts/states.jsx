// Every state has a word, a colour and a shape of its own.
const DISC = "M8 1a7 7 0 1 0 0 14a7 7 0 1 0 0-14z";
const RING = "M8 2a6 6 0 1 0 0 12a6 6 0 1 0 0-12z";
const SQUARE = "M2 2h12v12H2z";

// fill: in the colour; cut: lines in the background's colour on it; line: lines in the colour.
const STATES = {
  completed: { word: "completed", fill: DISC, cut: "M4.6 8.2l2.4 2.4 4.5-5" },
  skipped: { word: "skipped", line: `${RING}M4 12L12 4` },
  failed: { word: "failed", fill: "M8 0L16 8 8 16 0 8z", cut: "M5.5 5.5l5 5M10.5 5.5l-5 5" },
  cancelled: { word: "cancelled", fill: SQUARE, cut: "M5 8h6" },
  active: { word: "active", fill: "M2.5 1v14L15 8z" },
  waiting: { word: "waiting", line: `${RING}M5.4 8h.1M8 8h.1M10.6 8h.1` },
  prioritized: { word: "waiting with priority", colour: "waiting", line: `${RING}M8 11V5M5.6 7.4L8 5l2.4 2.4` },
  "group-waiting": { word: "waiting for an ordering key", colour: "waiting", line: `${SQUARE}M5.4 8h.1M8 8h.1M10.6 8h.1` },
  delayed: { word: "delayed", line: `${RING}M8 4.6V8l2.4 1.8` },
  suspended: { word: "suspended", colour: "delayed", fill: "M3 2h4v12H3zM9 2h4v12H9z" },
  "waiting-children": { word: "waiting for dependencies", colour: "blocked", dash: RING },
  open: { word: "not ended", colour: "blocked", dash: RING },
  staging: { word: "being added", colour: "blocked", dash: SQUARE },
  unknown: { word: "unknown", colour: "blocked", line: "M5 5.5a3 3 0 1 1 4.2 2.7C8.3 8.700 8 9.200 8 10.300M8 13h.1" },
};
STATES.running = { ...STATES.active, word: "running" };
STATES.ready = { ...STATES.waiting, word: "ready" };

const names = Object.keys(STATES);
const of = (state) => STATES[state] ?? STATES.unknown;
const kept = (state) => (Object.hasOwn(STATES, state) ? state : "unknown");

export const colourOf = (state) => {
  const key = kept(state);
  const one = STATES[key];
  return one.colour ?? (key === "running" ? "active" : key === "ready" ? "waiting" : key);
};
export const wordOf = (state) => (Object.hasOwn(STATES, state) ? of(state).word : String(state || "unknown"));

/** The entries of counts by state that are not 0, in one order everywhere. */
export function counted(states) {
  return Object.entries(states ?? {})
    .filter(([, count]) => Number(count) > 0)
    .map(([state, count]) => [state, Number(count)])
    .sort(([one], [other]) => names.indexOf(kept(one)) - names.indexOf(kept(other)));
}

/** The state of a group that one should see first. */
export function leading(states) {
  const found = new Set(counted(states).map(([state]) => state));
  const order = ["failed", "cancelled", "active", "running", "suspended", "waiting", "ready", "prioritized",
    "group-waiting", "delayed", "open", "waiting-children", "completed", "skipped"];
  return order.find((state) => found.has(state)) ?? [...found][0] ?? "unknown";
}

export function Icon({ state }) {
  const { fill, cut, line, dash } = STATES[kept(state)];
  return (
    <svg class={`icon s-${colourOf(state)}`} viewBox="0 0 16 16" aria-hidden="true" focusable="false">
      {fill && <path d={fill} fill="currentColor" />}
      {cut && <path d={cut} class="cut" />}
      {line && <path d={line} class="line" />}
      {dash && <path d={dash} class="line" stroke-dasharray="2.4 2" />}
    </svg>
  );
}

export function State({ state }) {
  return (
    <span class={`state s-${colourOf(state)}`}>
      <Icon state={state} /> {wordOf(state)}
    </span>
  );
}

/** The same icon as SVG text, for the canvas of the graph. */
export function iconText(state, colour, ground) {
  const { fill, cut, line, dash } = STATES[kept(state)];
  const stroke = (d, paint, more = "") =>
    `<path d="${d}" fill="none" stroke="${paint}" stroke-width="1.8" stroke-linecap="round" stroke-linejoin="round"${more}/>`;
  return (
    (fill ? `<path d="${fill}" fill="${colour}"/>` : "") +
    (cut ? stroke(cut, ground) : "") +
    (line ? stroke(line, colour) : "") +
    (dash ? stroke(dash, colour, ' stroke-dasharray="2.4 2"') : "")
  );
}
