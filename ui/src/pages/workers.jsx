// Workers: what they serve, what they run, and queues that nobody serves.
import { now, useData } from "../api.js";
import { flowLink, jobLink, nodeLink, queueLink } from "../route.js";
import { Handlers } from "../parts/code.jsx";
import { Problem, Table } from "../parts/table.jsx";
import { bytes, cut, list, number, plural, str } from "../parts/text.jsx";
import { Lasted, Time, duration, instant } from "../parts/time.jsx";

const SILENT = 10; // seconds

function Seen({ worker }) {
  const at = instant(worker.seen_at);
  const silent = Number.isFinite(worker.silent_seconds) ? worker.silent_seconds : at === null ? null : (now() - at) / 1000;
  if (worker.is_silent ?? silent > SILENT) return <strong class="s-failed" title={str(worker.seen_at)}>silent for {duration(Math.round(silent))}</strong>;
  return at === null ? <span>{silent === null ? "-" : silent < 1 ? "now" : `${duration(Math.round(silent))} ago`}</span> : <Time at={worker.seen_at} />;
}

function Running({ jobs }) {
  const found = list(jobs);
  if (!found.length) return <span class="quiet">nothing</span>;
  return (
    <ul class="names">
      {found.slice(0, 10).map((job) => (
        <li key={`${job.queue} ${job.job_id}`}>
          {job.flow_id && job.node ? <a href={nodeLink(job.flow_id, job.node)}>{cut(job.node, 50)}</a>
            : job.flow_id ? <a href={flowLink(job.flow_id)}>{cut(job.name, 50)}</a>
              : <a href={jobLink(str(job.queue), str(job.job_id))}>{cut(job.name || job.job_id, 50)}</a>}
          <span class="quiet"> for <Lasted from={job.since} /></span>
        </li>
      ))}
      {found.length > 10 && <li class="quiet">and {number(found.length - 10)} more</li>}
    </ul>
  );
}

const COLUMNS = [
  ["Worker", (worker) => (
    <div>
      <span class="name">{cut(worker.host, 40)}</span> <span class="quiet">{str(worker.pid)} {str(worker.kind)}</span>
      <div class="quiet">{cut(worker.id, 48)}</div>
      <Handlers worker={worker} />
    </div>
  ), "wide"],
  ["Queues", (worker) => (
    <ul class="names">
      {list(worker.queues).map((name) => <li key={name}><a href={queueLink(str(name))}>{cut(name, 40)}</a></li>)}
    </ul>
  )],
  ["Places in use", (worker) => worker.concurrency ? `${number(worker.running ?? 0)} of ${number(worker.concurrency)}` : "-", "number"],
  ["Holds", (worker) => number(worker.active), "number"],
  ["Runs", (worker) => <Running jobs={worker.jobs} />, "wide"],
  ["Memory", (worker) => bytes(worker.memory), "number"],
  ["Started", (worker) => <Time at={worker.started_at} />],
  ["Last heartbeat", (worker) => <Seen worker={worker} />],
];

const hasMemory = (workers) => list(workers).some((worker) => worker.memory > 0);

export const WorkerTable = ({ workers, none }) =>
  <Table label="Workers" columns={COLUMNS.filter(([head]) => head !== "Memory" || hasMemory(workers))} rows={list(workers)} keyOf={(worker) => worker.id} none={none} />;

export function Workers() {
  const source = useData(["workers"]);
  const unserved = list(source.data?.unserved);
  const lost = list(source.data?.lost);
  return (
    <>
      <h1>Workers</h1>
      <Problem error={source.error} />
      {unserved.length > 0 && (
        <section class="wrong bad" aria-labelledby="unserved">
          <h2 id="unserved">Queues that no worker serves</h2>
          <ul class="names">{unserved.map((name) => <li key={name}><a href={queueLink(str(name))}>{str(name)}</a></li>)}</ul>
        </section>
      )}
      {lost.length > 0 && (
        <section class="wrong bad" aria-labelledby="lost">
          <h2 id="lost">Lost workers</h2>
          <ul class="names">
            {lost.map((one) => (
              <li key={`${one.queue} ${one.id}`}>
                <code>{cut(one.id, 60)}</code>: {plural(one.jobs, "job")} of <a href={queueLink(str(one.queue))}>{cut(one.queue, 60)}</a> {one.jobs === 1 ? "waits" : "wait"} for another worker
              </li>
            ))}
          </ul>
        </section>
      )}
      {source.data && <WorkerTable workers={source.data.workers} none="No worker runs." />}
      {!source.data && !source.error && <p class="quiet">Loading…</p>}
    </>
  );
}
