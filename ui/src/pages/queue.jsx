// A queue: counts, rates, latencies, errors, limits, workers and jobs.
import { useEffect, useRef } from "preact/hooks";
import { post, useData } from "../api.js";
import { flowLink, jobLink, link, nodeLink, queueLink, route, setParams } from "../route.js";
import { Bar } from "../parts/bar.jsx";
import { Action } from "../parts/dialog.jsx";
import { Failures } from "../parts/errors.jsx";
import { Minutes } from "../parts/minutes.jsx";
import { State, counted, wordOf } from "../parts/states.jsx";
import { Choice, Pending, Problem, Table } from "../parts/table.jsx";
import { Short, cut, list, number, plural, str } from "../parts/text.jsx";
import { Lasted, Time, duration } from "../parts/time.jsx";
import { WorkerTable } from "./workers.jsx";

const JOB_STATES = ["waiting", "active", "delayed", "prioritized", "waiting-children", "suspended", "failed", "completed"];

export function Queue({ name }) {
  const source = useData(["queues", name]);
  const queue = source.data;
  useEffect(() => {
    document.title = `${cut(name, 60)} - GlideMQ`;
  }, [name]);
  if (!queue) return <Pending source={source} title={name}><p><a href={link(["queues"])}>All queues</a></p></Pending>;
  const { counts } = queue;
  const waits = counted(counts).some(([state]) => ["waiting", "prioritized"].includes(state));
  return (
    <>
      <header class="head">
        <p class="crumbs"><a href={link(["queues"])}>Queues</a></p>
        <h1>{name}</h1>
        <Bar isWordy states={counts} href={(state) => queueLink(name, { state })} />
        {queue.elements && (queue.elements.running > 0 || queue.elements.waiting > 0) && (
          <p>Elements of arrays: {number(queue.elements.running)} running, {number(queue.elements.ready)} ready, {number(queue.elements.waiting)} waiting.</p>
        )}
        <Buttons name={name} queue={queue} reload={source.reload} />
      </header>
      <Problem error={source.error} />
      {queue.paused && <section class="wrong"><p><strong>The queue is paused.</strong> Running jobs end, and no other job starts until it is resumed.</p></section>}
      {!list(queue.workers).length && waits && <section class="wrong bad"><p><strong>No worker serves this queue.</strong> Its jobs wait until one is started.</p></section>}
      {list(queue.failures).length > 0 && (
        <section class="wrong bad" aria-labelledby="failures">
          <h2 id="failures">Failures by cause</h2>
          <Failures groups={queue.failures} noun="job" href={(one) => jobHref(name, one)} />
        </section>
      )}
      <section><h2>The last hour</h2><Minutes minutes={queue.minutes} /></section>
      <Handlers handlers={queue.handlers} />
      <Limits limits={queue.limits} dead={queue.dead_letters} />
      <section><h2>Workers</h2><WorkerTable workers={queue.workers} none="No worker serves this queue." /></section>
      <Jobs name={name} />
    </>
  );
}

/** The node of a job, or the job itself. */
const jobHref = (queue, { flow_id: flow, node, job_id: job }) => (flow && node ? nodeLink(flow, node) : jobLink(queue, str(job)));

function Buttons({ name, queue, reload }) {
  const act = (verb, title, plan, isDanger = false) => ({
    title, confirm: title, plan, isDanger,
    run: async () => {
      const answer = await post(["queues", name, verb]);
      reload();
      return answer;
    },
    done: (answer) => (Number.isFinite(answer?.count) ? `${title}: ${plural(answer.count, "job")}.` : `${title}: done.`),
  });
  const failed = queue.counts?.failed ?? 0;
  const dead = queue.dead_letters;
  return (
    <p class="buttons">
      {queue.paused
        ? <Action action={act("resume", "Resume the queue", "Workers start jobs of this queue again.")} />
        : <Action action={act("pause", "Pause the queue", "Workers start no more jobs of this queue until it is resumed. Running jobs end as usual.", true)} />}
      {failed > 0 && <Action action={act("retry-failed", "Retry failed jobs", `${plural(failed, "failed job")} of this queue run again.`)} />}
      {dead?.count > 0 && (
        <Action action={act("replay-dead-letters", "Replay dead letters",
          `${plural(dead.count, "job")} of the dead letter queue ${dead.queue} are added to their own queues again.`)} />
      )}
    </p>
  );
}

function Handlers({ handlers }) {
  const ms = (value) => (Number.isFinite(value) ? duration(value) : "-");
  return (
    <section>
      <h2>Handlers</h2>
      <Table label="Handlers" rows={list(handlers)} keyOf={(one) => one.handler} none="No figures yet." columns={[
        ["Handler", (one) => <code>{cut(one.handler, 60)}</code>],
        ["Jobs", (one) => number(one.count), "number"],
        ["Failed", (one) => <span class={one.failed > 0 ? "s-failed" : ""}>{number(one.failed)}</span>, "number"],
        ["Retried", (one) => number(one.retried), "number"],
        ["Waiting, mean", (one) => ms(one.waiting?.mean), "number"],
        ["95 % waited less than", (one) => ms(one.waiting?.p95), "number"],
        ["Running, mean", (one) => ms(one.running?.mean), "number"],
        ["50 % ran less than", (one) => ms(one.running?.p50), "number"],
        ["95 %", (one) => ms(one.running?.p95), "number"],
        ["99 %", (one) => ms(one.running?.p99), "number"],
      ]} />
    </section>
  );
}

function Limits({ limits, dead }) {
  const facts = [
    ["Jobs at a time", limits?.concurrency && cut(limits.concurrency, 80)],
    ["Rate", limits?.rate && cut(limits.rate, 80)],
    ["Dead letters", dead && <span><a href={queueLink(str(dead.queue))}>{str(dead.queue)}</a>: {number(dead.count)}</span>],
  ].filter(([, value]) => value);
  if (!facts.length) return null;
  return (
    <section>
      <h2>Limits</h2>
      <dl class="facts">{facts.map(([word, value]) => <div key={word}><dt>{word}</dt><dd>{value}</dd></div>)}</dl>
    </section>
  );
}

function Jobs({ name }) {
  const { state = "waiting", cursor } = route.value.params;
  const source = useData(["queues", name, "jobs"], { state, limit: 50, cursor });
  const heading = useRef();
  useEffect(() => {
    if (route.peek().params.state && document.activeElement?.tagName !== "SELECT") heading.current.scrollIntoView();
  }, [state, cursor]);
  return (
    <section>
      <h2 ref={heading}>Jobs</h2>
      <div class="filters">
        <Choice label="State" value={state} options={JOB_STATES.map((one) => [one, wordOf(one)])} onChange={(value) => setParams({ state: value, cursor: "" })} />
      </div>
      <Problem error={source.error} />
      {source.data && (
        <Table label="Jobs" rows={list(source.data.jobs)} keyOf={(job) => job.id} isLoading={source.isLoading} none="There are no such jobs." columns={[
          ["State", (job) => <State state={job.state} />],
          ["Id", (job) => <a href={jobHref(name, { ...job, job_id: job.id })}><Short text={job.id} size={40} /></a>],
          ["Job", (job) => <Short text={job.name} size={50} />],
          ["Flow", (job) => job.flow_id && <a href={flowLink(job.flow_id)}>{cut(job.flow_id, 40)}</a>],
          ["Attempts", (job) => number(job.attempts), "number"],
          ["Created", (job) => <Time at={job.created_at} />],
          ["Ran", (job) => (job.started_at ? <Lasted from={job.started_at} to={job.finished_at} /> : "-")],
          ["Reason", (job) => <Short text={job.reason} />, "wide"],
        ]} />
      )}
      <nav class="pages" aria-label="Pages of jobs">
        {cursor && <a href={queueLink(name, { state })}>First page</a>}
        {source.data?.next && <a href={queueLink(name, { state, cursor: source.data.next })}>Next page</a>}
      </nav>
    </section>
  );
}
