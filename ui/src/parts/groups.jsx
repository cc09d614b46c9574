// The list of groups: the same content as the graph, for everyone.
import { useState } from "preact/hooks";
import { link, nodeLink, route } from "../route.js";
import { Bar } from "./bar.jsx";
import { leadOf, statesOf, title, wholly } from "./graph.jsx";
import { Icon, counted, wordOf } from "./states.jsx";
import { Choice, Search } from "./table.jsx";
import { cut, list, number, plural, str } from "./text.jsx";

const STEP = 200;
const KINDS = [["", "all"], ["failed", "with failures"], ["active", "active"], ["open", "not ended"], ["path", "critical path"]];

function matches(group, kind, isCritical) {
  if (kind === "path") return isCritical;
  const states = counted(group.states).map(([state]) => state);
  if (kind === "open") return states.some((state) => !["completed", "skipped", "failed", "cancelled"].includes(state));
  return !kind || states.includes(kind);
}

export function Groups({ id, groups, path, selected, onOpen }) {
  const [text, setText] = useState("");
  const [kind, setKind] = useState("");
  const [most, setMost] = useState(STEP);
  const critical = new Set(path);
  const found = groups
    .map((group, index) => ({ group, index }))
    .filter(({ group, index }) => matches(group, kind, critical.has(index)))
    .filter(({ group }) => !text || `${group.label} ${group.key}`.toLowerCase().includes(text.toLowerCase()));
  return (
    <section class="groups" aria-label="Groups of nodes">
      <h2>{plural(groups.length, "group")} of nodes</h2>
      <form class="filters" role="search" aria-label="Groups" onSubmit={(event) => event.preventDefault()}>
        <Search label="Name" value={text} onChange={setText} isMain={!selected} />
        <Choice label="Show" value={kind} options={KINDS} onChange={setKind} />
      </form>
      <ol>
        {found.slice(0, most).map(({ group, index }) => (
          <Entry key={group.key} {...{ id, group, groups, onOpen, index }} isCritical={critical.has(index)} isOpen={group.key === selected} />
        ))}
      </ol>
      {!found.length && <p class="quiet">No group matches.</p>}
      {found.length > most && (
        <button type="button" onClick={() => setMost(most + STEP)}>Show {number(Math.min(STEP, found.length - most))} more</button>
      )}
    </section>
  );
}

function Entry({ id, group, groups, index, isCritical, isOpen, onOpen }) {
  const { name, many } = title(group);
  const states = statesOf(group);
  const lead = leadOf(group);
  const after = list(group.after).map((one) => groups[one]).filter(Boolean);
  const href = group.count > 1 ? link(["flows", id], { ...route.value.params, group: group.key }) : nodeLink(id, group.key);
  const open = (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    onOpen(index);
  };
  return (
    <li class={isOpen ? "current" : ""}>
      <a href={href} onClick={open} aria-current={isOpen ? "true" : undefined} title={wholly(group)}>
        <Icon state={lead} />{cut(name, 44)}{many && ` ${many}`}
      </a>
      <span class="quiet">
        {!many && ` ${wordOf(lead)}`}
        {isCritical && " · critical path"}
        {group.causes > 0 && <span class="s-failed"> · {number(group.causes)} failed by {group.causes === 1 ? "itself" : "themselves"}</span>}
      </span>
      {many && <Bar states={states} />}
      {after.length > 0 && (
        <span class="hidden">after {after.slice(0, 8).map((one) => str(one.label ?? one.key)).join(", ")}{after.length > 8 && ` and ${number(after.length - 8)} more`}</span>
      )}
    </li>
  );
}
