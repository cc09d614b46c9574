// The list of nodes of a flow or of one of its groups, in pages.
import { useData } from "../api.js";
import { nodeLink, queueLink, route, setParams } from "../route.js";
import { State, wordOf } from "./states.jsx";
import { Choice, Pages, Problem, Search, Table } from "./table.jsx";
import { Short, cut, list, number, str } from "./text.jsx";
import { Lasted, Time, duration } from "./time.jsx";

const LIMIT = 100;
const STATES = ["failed", "active", "waiting", "delayed", "waiting-children", "suspended", "completed", "skipped"];
export const NODE_STATES = [["", "all"], ...STATES.map((state) => [state, wordOf(state)])];

const columns = (id) => [
  ["State", (node) => <State state={node.state} />],
  ["Node", (node) => <a href={nodeLink(id, node.name)} class="name" title={str(node.name)}>{cut(node.name, 80)}</a>, "wide"],
  ["Job", (node) => <Short text={node.job} size={40} />],
  ["Queue", (node) => <a href={queueLink(str(node.queue))}>{cut(node.queue, 30)}</a>],
  ["Attempts", (node) => number(node.attempts), "number"],
  ["Started", (node) => <Time at={node.started_at} />],
  ["Ran", (node) => (Number.isFinite(node.seconds) ? duration(node.seconds) : node.state === "active" ? <Lasted from={node.started_at} /> : "-")],
  ["Reason", (node) => <span class={node.state === "failed" ? "s-failed" : ""}><Short text={node.reason} />{node.ignored && " (ignored)"}</span>, "wide"],
  ["Worker", (node) => <Short text={node.worker} size={24} />],
];

export function Nodes({ id, group, version }) {
  const { state, search, offset } = route.value.params;
  const from = Math.max(0, Number(offset) || 0);
  const params = { group, state, search, offset: from, limit: LIMIT };
  const source = useData(["flows", id, "nodes"], params, version ? 5000 : 30000);
  const filter = (changes) => setParams({ offset: "", ...changes });
  return (
    <section aria-label={group ? `Nodes of ${group}` : "Nodes"}>
      <form class="filters" role="search" aria-label="Nodes" onSubmit={(event) => event.preventDefault()}>
        <Search label="Name" value={search ?? ""} hint="Part of the name" onChange={(text) => filter({ search: text })} />
        <Choice label="State" value={state} options={NODE_STATES} onChange={(value) => filter({ state: value })} />
      </form>
      <Problem error={source.error} />
      {source.data ? (
        <>
          <Table label="List of nodes" columns={columns(id)} rows={list(source.data.nodes)} keyOf={(node) => node.name}
            isLoading={source.isLoading} none="No node matches these filters." />
          <Pages total={Number(source.data.total) || 0} offset={from} limit={LIMIT} noun="node"
            onMove={(next) => setParams({ offset: next || "" })} />
        </>
      ) : !source.error && <p class="quiet">Loading…</p>}
    </section>
  );
}
