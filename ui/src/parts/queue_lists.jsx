// What else there is of a queue: its ordering keys, tags, tracked jobs and flows, and statistics by day.
import { useState } from "preact/hooks";
import { post, useData } from "../api.js";
import { flowLink, jobLink, queueLink } from "../route.js";
import { FlowBar } from "./bar.jsx";
import { Action } from "./dialog.jsx";
import { State } from "./states.jsx";
import { Choice, Problem, Table } from "./table.jsx";
import { Short, cut, list, number, plural, str } from "./text.jsx";
import { Time, duration } from "./time.jsx";

/** A limit of starts in words, with what is used of it. */
export const rateText = (rate) => rate && `${number(rate.started)} of ${number(rate.max)} started in ${duration(rate.seconds)}`;

const tokensText = (tokens) => tokens && `${number(Number(tokens.held.toFixed(2)))} of ${number(tokens.capacity)} left, ${number(tokens.per_second)} more a second`;

function KeyState({ one }) {
  if (one.paused_until) return <strong class="s-waiting">paused, goes on <Time at={one.paused_until} /></strong>;
  if (one.parked > 0 && one.resumes_at) return <span>waits for its limit, next try <Time at={one.resumes_at} /></span>;
  if (one.parked > 0) return <span>waits for its running jobs</span>;
  return <span>{one.active > 0 ? "running" : "idle"}</span>;
}

const KEY_COLUMNS = [
  ["Ordering key", (one) => <span class="name"><Short text={one.key} size={60} /></span>, "wide"],
  ["State", (one) => <KeyState one={one} />],
  ["Running", (one) => `${number(one.active)} of ${number(one.concurrency)}`, "number"],
  ["Held back", (one) => number(one.parked), "number"],
  ["Starts", (one) => rateText(one.rate) ?? "no limit"],
  ["Tokens", (one) => tokensText(one.tokens) ?? "no limit"],
];

export function Keys({ name }) {
  const source = useData(["queues", name, "keys"], { limit: 200 });
  const rows = list(source.data?.keys);
  return (
    <Part source={source} title="Ordering keys">
      <Table label="Ordering keys" columns={KEY_COLUMNS} rows={rows} none="No ordering key is in use." />
      {source.data?.total > rows.length && (
        <p class="quiet">{number(rows.length)} of {number(source.data.total)} keys: those that hold back most jobs{source.data.is_partial && " among the first 1,000"}.</p>
      )}
    </Part>
  );
}

export function Tags({ name }) {
  const [offset, setOffset] = useState(0);
  const source = useData(["queues", name, "tags"], { offset, limit: 100 }, 15000);
  return (
    <Part source={source} title="Tags">
      <Table label="Tags" rows={list(source.data?.tags)} keyOf={(one) => one.tag} none="No job has a tag." columns={[
        ["Tag", (one) => <a class="name" href={queueLink(name, { tag: one.tag })} title={str(one.tag)}>{cut(one.tag, 80)}</a>, "wide"],
        ["Jobs", (one) => number(one.count), "number"],
      ]} />
      <nav class="pages" aria-label="Pages of tags">
        {offset > 0 && <button type="button" onClick={() => setOffset(0)}>First page</button>}
        {source.data?.next && <button type="button" onClick={() => setOffset(source.data.next)}>Next page</button>}
      </nav>
    </Part>
  );
}

export function Tracked({ name }) {
  const source = useData(["queues", name, "tracked"]);
  return (
    <Part source={source} title="Tracked jobs and flows">
      <Table label="Tracked jobs and flows" rows={list(source.data?.tracked)} keyOf={(one) => `${one.kind} ${one.id}`}
        none="Nothing is tracked. Track a job on its page, or with glidemq track." columns={[
          ["State", (one) => (one.state ? <State state={one.state} /> : <span class="quiet">removed</span>)],
          ["What", (one) => str(one.kind)],
          ["Id", (one) => <a href={one.kind === "flow" ? flowLink(one.id) : jobLink(name, one.id)} title={str(one.id)}>{cut(one.id, 60)}</a>, "wide"],
          ["Name", (one) => <Short text={one.job?.name ?? one.flow?.name} size={50} />],
          ["Progress", (one) => (one.flow ? <FlowBar flow={one.flow} /> : one.job ? plural(one.job.attempts, "attempt") : "-"), "bars"],
          ["Tracked since", (one) => <Time at={one.since} />],
          ["Reason", (one) => <Short text={one.job?.reason ?? one.flow?.reason} />, "wide"],
        ]} />
    </Part>
  );
}

const seconds = (value) => (Number.isFinite(value) ? duration(value) : "-");

const HANDLER_COLUMNS = [
  ["Handler", (one) => <code>{cut(one.handler, 60)}</code>],
  ["Completed", (one) => number(one.count), "number"],
  ["Failed", (one) => <span class={one.failed > 0 ? "s-failed" : ""}>{number(one.failed)}</span>, "number"],
  ["Retried", (one) => number(one.retried), "number"],
  ["Waiting, mean", (one) => seconds(one.waiting?.mean), "number"],
  ["95 % waited less than", (one) => seconds(one.waiting?.p95), "number"],
  ["Running, mean", (one) => seconds(one.running?.mean), "number"],
  ["50 % ran less than", (one) => seconds(one.running?.p50), "number"],
  ["95 %", (one) => seconds(one.running?.p95), "number"],
  ["99 %", (one) => seconds(one.running?.p99), "number"],
];

export const Handlers = ({ handlers, none }) =>
  <Table label="Handlers" rows={list(handlers)} keyOf={(one) => one.handler} none={none} columns={HANDLER_COLUMNS} />;

const BUCKET_COLUMNS = [
  ["From", (one) => duration(one.start), "number"],
  ["To", (one) => duration(one.end), "number"],
  ["Jobs", (one) => number(one.count), "number"],
  ["Share", (one) => <meter min="0" max={one.most} value={one.count} aria-label={`${number(one.count)} jobs`} />],
];

function Histogram({ title, buckets }) {
  const found = list(buckets);
  const most = Math.max(1, ...found.map((one) => one.count));
  return (
    <section>
      <h3>{title}</h3>
      <Table label={title} rows={found.map((one) => ({ ...one, most }))} keyOf={(one) => one.start} none="No figures." columns={BUCKET_COLUMNS} />
    </section>
  );
}

export function Statistics({ name }) {
  const [day, setDay] = useState("");
  const source = useData(["queues", name, "statistics"], { day }, day ? 60000 : 15000);
  const days = list(source.data?.days);
  return (
    <Part source={source} title="How long jobs waited and ran">
      <div class="filters">
        <Choice label="Day (UTC)" value={day} onChange={setDay}
          options={days.map((one, ago) => [ago ? one : "", ago ? one : `${one}, today`])} />
      </div>
      <Handlers handlers={source.data?.handlers} none="No job ran on this day." />
      <div class="columns">
        <Histogram title="How long they waited" buckets={source.data?.waiting} />
        <Histogram title="How long they ran" buckets={source.data?.running} />
      </div>
    </Part>
  );
}

function Part({ source, title, children }) {
  return (
    <section>
      <h2>{title}</h2>
      <Problem error={source.error} />
      {source.data ? children : !source.error && <p class="quiet">Loading…</p>}
    </section>
  );
}

/** The button that puts a job on the list of tracked ones, or takes it off. */
export function Track({ queue, job, reload }) {
  const verb = job.tracked ? "untrack" : "track";
  const title = job.tracked ? "Track no longer" : "Track this job";
  const plan = job.tracked
    ? "The job leaves the list of tracked ones, for everybody. What its history has recorded stays."
    : "The job is on the list of tracked ones of its queue, for everybody, and records its history from now on.";
  const run = async () => {
    await post(["queues", queue, "jobs", job.id, verb]);
    reload();
  };
  return <Action action={{ title, confirm: title, plan, run }} />;
}
