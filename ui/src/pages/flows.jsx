// The list of flows, newest first.
import { useData, now } from "../api.js";
import { flowLink, jobLink, link, queueLink, route, setParams } from "../route.js";
import { FlowBar } from "../parts/bar.jsx";
import { State } from "../parts/states.jsx";
import { Choice, Problem, Search, Table } from "../parts/table.jsx";
import { Labels, Short, list, plural, str } from "../parts/text.jsx";
import { Lasted, Time } from "../parts/time.jsx";

const STATES = [["", "all"], ...["running", "failed", "completed", "cancelled", "staging", "unknown"].map((one) => [one, one])];
const SINCE = [["", "any time"], ["1", "last hour"], ["24", "last day"], ["168", "last week"], ["720", "last 30 days"]];
const HOUR = 3600000;

/** The start of the period, the same for a minute, so that the list is not loaded anew all the time. */
const since = (hours) =>
  hours > 0 ? new Date(Math.floor(now() / 60000) * 60000 - hours * HOUR).toISOString() : "";

const labelled = (label) => link(["flows"], { label });

const COLUMNS = [
  ["State", (flow) => <State state={flow.state} />],
  ["Flow", (flow) => (
    <div>
      <a href={flowLink(flow.id)} class="name">{str(flow.name) || str(flow.id)}</a>
      {flow.name !== flow.id && <div class="quiet"><Short text={flow.id} size={60} /></div>}
      <Labels labels={flow.labels} href={labelled} />
    </div>
  ), "wide"],
  ["Nodes", (flow) => <FlowBar flow={flow} />, "bars"],
  ["Created", (flow) => <Time at={flow.created_at} />],
  ["Lasted", (flow) => <Lasted from={flow.created_at} to={flow.finished_at} />],
  ["Why, or note", (flow) => (
    <div>
      {flow.reason && <div class={flow.state === "failed" ? "s-failed" : ""}><Short text={flow.reason} /></div>}
      {flow.note && <div class="quiet"><Short text={flow.note} /></div>}
    </div>
  ), "wide"],
];

const JOBS = [
  ["State", (job) => <State state={job.state} />],
  ["Job", (job) => <a class="name" href={jobLink(str(job.queue), str(job.id))}>{str(job.name)} <Short text={job.id} size={60} /></a>, "wide"],
  ["Queue", (job) => <a href={queueLink(str(job.queue))}><Short text={job.queue} size={60} /></a>],
];

/** Jobs with the id that was searched for. */
const Jobs = ({ rows }) => (
  <section>
    <h2>Jobs outside flows with this id</h2>
    <Table label="Jobs" columns={JOBS} rows={rows} keyOf={(job) => `${job.queue} ${job.id}`} />
  </section>
);

export function Flows() {
  const { state, search, label, hours, cursor } = route.value.params;
  const source = useData(["flows"], { state, search, label, since: since(Number(hours)), limit: 50, cursor });
  const filter = (changes) => setParams({ cursor: "", ...changes });
  const rows = list(source.data?.flows);
  const jobs = list(source.data?.jobs);
  return (
    <>
      <h1>Flows</h1>
      <form class="filters" role="search" aria-label="Flows" onSubmit={(event) => event.preventDefault()}>
        <Search label="Search" value={search ?? ""} hint="Flow id, name, Airflow DAG or run, Dagster run, job id"
          onChange={(text) => filter({ search: text })} />
        <Choice label="State" value={state} options={STATES} onChange={(value) => filter({ state: value })} />
        <Choice label="Created" value={hours} options={SINCE} onChange={(value) => filter({ hours: value })} />
        <Search label="Label" value={label ?? ""} hint="key=value" isMain={false} onChange={(text) => filter({ label: text })} />
      </form>
      <Problem error={source.error} />
      {jobs.length > 0 && <Jobs rows={jobs} />}
      {source.data && (rows.length > 0 || !jobs.length) && (
        <Table label="Flows" columns={COLUMNS} rows={rows} keyOf={(flow) => flow.id} isLoading={source.isLoading}
          none={source.data.searched ? "No flow among these matches." : state || search || label || hours ? "No flow matches these filters." : "There are no flows yet."} />
      )}
      {!source.data && !source.error && <p class="quiet">Loading…</p>}
      <nav class="pages" aria-label="Pages of flows">
        {source.data?.searched && <span>{plural(source.data.searched, "flow")} {cursor ? "more were" : "were"} searched, and there are older ones.</span>}
        {cursor && <a href={link(["flows"], { ...route.value.params, cursor: "" })}>Newest flows</a>}
        {source.data?.next && <a href={link(["flows"], { ...route.value.params, cursor: source.data.next })}>Older flows</a>}
      </nav>
    </>
  );
}
