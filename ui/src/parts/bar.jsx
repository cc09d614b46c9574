// Counts by state as one bar, and as words.
import { Icon, colourOf, counted, wordOf } from "./states.jsx";
import { number } from "./text.jsx";

export function Bar({ states, isWordy = false, atLeast = [], href }) {
  const parts = counted(states);
  const total = parts.reduce((sum, [, count]) => sum + count, 0);
  const text = (state, count) => `${atLeast.includes(state) ? "at least " : ""}${number(count)} ${wordOf(state)}`;
  const words = parts.map(([state, count]) => text(state, count)).join(", ") || "nothing yet";
  return (
    <div class="counts">
      <div class="bar" role="img" aria-label={words} title={words}>
        {parts.map(([state, count]) => (
          <span key={state} class={`b-${colourOf(state)}`} style={{ flexGrow: Math.max(count / total, 0.008) }} />
        ))}
      </div>
      {isWordy && (
        <ul class="legend" aria-label="Counts by state">
          {parts.map(([state, count]) => (
            <li key={state}>
              <Icon state={state} />{" "}
              {href ? <a href={href(state)}>{text(state, count)}</a> : text(state, count)}
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

/** The counts of a flow by state, from its totals. */
export function countsOf(flow) {
  const done = (flow.completed ?? 0) + (flow.failed ?? 0) + (flow.skipped ?? 0);
  return { completed: flow.completed, failed: flow.failed, skipped: flow.skipped, open: Math.max(0, flow.total - done) };
}

export function FlowBar({ flow }) {
  const { open, ...ended } = countsOf(flow);
  return (
    <div>
      <Bar states={{ ...ended, [flow.state === "cancelled" ? "cancelled" : "open"]: open }} />
      <span class="quiet">
        {number(flow.completed)} of {number(flow.total)}
        {flow.failed > 0 && <span class="s-failed">, {number(flow.failed)} failed</span>}
        {flow.skipped > 0 && <span>, {number(flow.skipped)} skipped</span>}
      </span>
    </div>
  );
}
