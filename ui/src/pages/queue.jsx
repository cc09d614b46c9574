// A queue: counts, rates, latencies, errors, limits, workers, jobs, ordering keys, tags, tracked jobs and statistics.
import { useEffect } from "preact/hooks";
import { get, post, useData } from "../api.js";
import { flowLink, jobLink, link, nodeLink, queueLink, route, setParams } from "../route.js";
import { Bar } from "../parts/bar.jsx";
import { Action } from "../parts/dialog.jsx";
import { Failures } from "../parts/errors.jsx";
import { Rates } from "../parts/minutes.jsx";
import { Handlers, Keys, Statistics, Tags, Tracked, rateText } from "../parts/queue_lists.jsx";
import { State, counted, wordOf } from "../parts/states.jsx";
import { Choice, Pending, Problem, Search, Table } from "../parts/table.jsx";
import { Short, cut, list, number, plural, str } from "../parts/text.jsx";
import { Lasted, Time } from "../parts/time.jsx";
import { WorkerTable } from "./workers.jsx";

const JOB_STATES = ["waiting", "active", "delayed", "prioritized", "waiting-children", "group-waiting", "suspended", "failed", "completed"];
const VIEWS = [["", "Overview"], ["jobs", "Jobs"], ["keys", "Ordering keys"], ["tags", "Tags"], ["tracked", "Tracked"], ["statistics", "Statistics"]];
const MOST_RETRIED = 1000;
const NEWEST = ["failed", "completed"];

export function Queue({ name }) {
  const source = useData(["queues", name]);
  const queue = source.data;
  const held = useData(["queues", name, "held"], {}, 15000).data;
  useEffect(() => {
    document.title = `${cut(name, 60)} - GlideMQ`;
  }, [name]);
  if (!queue) return <Pending source={source} title={name}><p><a href={link(["queues"])}>All queues</a></p></Pending>;
  const counts = { ...queue.counts, ...held?.counts };
  const { elements } = queue;
  const letters = list(queue.dead_letters_of).map(str);
  const { view: asked, state, tag } = route.value.params;
  const view = VIEWS.some(([key]) => key === asked) ? asked : state || tag ? "jobs" : "";
  const waits = counted(counts).some(([one]) => ["waiting", "prioritized"].includes(one)) || elements?.waiting > 0;
  return (
    <>
      <header class="head">
        <p class="crumbs"><a href={link(["queues"])}>Queues</a></p>
        <h1>{name}</h1>
        <Bar isWordy states={counts} atLeast={list(held?.at_least)} href={(one) => queueLink(name, { state: one })} />
        {elements?.arrays > 0 && (
          <p>And {plural(elements.arrays, "open array")}: {plural(elements.running, "element")} running, {number(elements.waiting)} waiting, {number(elements.ready)} of them ready.</p>
        )}
        <Buttons name={name} queue={queue} reload={source.reload} />
      </header>
      <Problem error={source.error} />
      {queue.exists === false && <section class="wrong"><p><strong>There is no queue with this name.</strong> It has no jobs, workers or settings. <a href={link(["queues"])}>All queues</a></p></section>}
      {queue.paused && <section class="wrong"><p><strong>The queue is paused.</strong> Running jobs end, and no other job starts until it is resumed.</p></section>}
      {letters.length > 0 && (
        <p>
          It holds the dead letters of{" "}
          {letters.map((one, at) => <span key={one}>{at > 0 && ", "}<a href={queueLink(one)}>{cut(one, 60)}</a></span>)}, which are replayed there.
        </p>
      )}
      {!list(queue.workers).length && waits && !letters.length && <section class="wrong bad"><p><strong>No worker serves this queue.</strong> Its jobs wait until one is started.</p></section>}
      <Stalled name={name} stalled={queue.stalled} />
      <nav class="tabs" aria-label="Views of this queue">
        {VIEWS.map(([key, word]) => <a key={key} href={queueLink(name, { view: key })} aria-current={view === key ? "page" : undefined}>{word}</a>)}
      </nav>
      {view === "" && <Overview name={name} queue={queue} reload={source.reload} />}
      {view === "jobs" && <Jobs name={name} />}
      {view === "keys" && <Keys name={name} />}
      {view === "tags" && <Tags name={name} />}
      {view === "tracked" && <Tracked name={name} />}
      {view === "statistics" && <Statistics name={name} />}
    </>
  );
}

function Overview({ name, queue, reload }) {
  return (
    <>
      {list(queue.failures).length > 0 && (
        <section class="wrong bad" aria-labelledby="failures">
          <h2 id="failures">Failures by cause</h2>
          <Failures groups={queue.failures} noun="job" href={(one) => jobHref(name, one)} rest={queueLink(name, { view: "jobs", state: "failed" })} more={(group) => <RetryGroup {...{ name, group, reload }} />} />
          {queue.failures_are_partial
            ? <p class="quiet">Only the last failures were read: there may be more.</p>
            : queue.held_back_is_partial && <p class="quiet">Not all of their flows were read: they may hold back more nodes.</p>}
        </section>
      )}
      <Rates queue={queue} />
      <section><h2>Handlers today</h2><Handlers handlers={queue.handlers} none="No figures yet." /></section>
      <Limits limits={queue.limits} dead={queue.dead_letters} active={queue.counts?.active} />
      <section><h2>Workers</h2><WorkerTable workers={queue.workers} none="No worker serves this queue." /></section>
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
      {failed > 0 && <Action action={act("retry-failed", "Retry failed jobs", async () => {
        const { text, jobs } = await get(["queues", name, "retry-plan"]);
        return { text: str(text), isNothing: jobs === 0 };
      })} />}
      {dead?.count > 0 && (
        <Action action={act("replay-dead-letters", "Replay dead letters",
          `${plural(dead.count, "job")} of the dead letter queue ${dead.queue} are added to their own queues again.`)} />
      )}
    </p>
  );
}

function RetryGroup({ name, group, reload }) {
  const run = async () => {
    const answer = await post(["queues", name, "retry-group"], { group: group.group });
    reload();
    return answer;
  };
  const jobs = group.count - (group.nodes ?? 0);
  if (!jobs) return <span class="quiet">Only nodes: retry their flows.</span>;
  const most = Math.min(jobs, MOST_RETRIED);
  const stay = group.nodes > 0 ? ` ${plural(group.nodes, "failed node")} of flows ${group.nodes === 1 ? "stays as it is: retry its flow" : "stay as they are: retry their flows"}.` : "";
  const plan = `Runs ${jobs > most ? "the oldest " : ""}${plural(most, "failed job")} of the group ${cut(group.group, 100)} again.${stay}`;
  const done = (answer) => `Retry this group: ${plural(answer?.count, "job")}.`;
  return <Action isSmall action={{ title: `Retry the group ${cut(group.group, 60)}`, confirm: "Retry this group", plan, run, done }} />;
}

/** Jobs that were lost with their workers and that nobody has taken over yet. */
function Stalled({ name, stalled }) {
  const jobs = list(stalled?.jobs);
  const workers = list(stalled?.lost_workers);
  if (!jobs.length && !workers.length) return null;
  return (
    <section class="wrong bad" aria-labelledby="stalled">
      <h2 id="stalled">Stalled</h2>
      {workers.map((one) => <p key={one.id}>The worker <code>{cut(one.id, 60)}</code> was lost. {plural(one.jobs, "job")} of it {one.jobs === 1 ? "waits" : "wait"} until {one.jobs === 1 ? "its lease ends" : "their leases end"}.</p>)}
      {jobs.slice(0, 10).map((job) => (
        <p key={job.id}>
          <a href={jobHref(name, { ...job, job_id: job.id })}>{cut(job.node || job.id, 60)}</a> has not been renewed by its worker: its lease ended <Time at={job.lease_until} />.
        </p>
      ))}
      {jobs.length > 10 && <p>And {plural(jobs.length - 10, "more job")}.</p>}
      <p class="quiet">Another worker of the queue, or a supervisor, takes them over.</p>
    </section>
  );
}

function Limits({ limits, dead, active }) {
  const facts = [
    ["Jobs at a time", limits?.concurrency ? `${number(active ?? 0)} of ${number(limits.concurrency)}` : "no limit"],
    ["Starts", rateText(limits?.rate) ?? "no limit"],
    ["Dead letters", dead && <span><a href={queueLink(str(dead.queue))}>{str(dead.queue)}</a>: {number(dead.count)}</span>],
  ].filter(([, value]) => value);
  return (
    <section>
      <h2>Limits over all workers</h2>
      <dl class="facts">{facts.map(([word, value]) => <div key={word}><dt>{word}</dt><dd>{value}</dd></div>)}</dl>
      <p class="quiet">Limits of single keys: <a href={queueLink(String(route.value.parts[1] ?? ""), { view: "keys" })}>ordering keys</a>.</p>
    </section>
  );
}

function Jobs({ name }) {
  const { state = "waiting", cursor, tag = "" } = route.value.params;
  const source = useData(["queues", name, "jobs"], { state: tag ? "" : state, tag, limit: 50, cursor });
  const shown = tag ? { tag } : { state };
  const isActive = !tag && state === "active";
  return (
    <section>
      <h2>Jobs</h2>
      <div class="filters">
        <Choice label="State" value={tag ? "" : state} options={[...(tag ? [["", "any"]] : []), ...JOB_STATES.map((one) => [one, wordOf(one)])]}
          onChange={(value) => setParams({ view: "jobs", state: value, tag: "", cursor: "" })} />
        <Search label="Tag" value={tag} hint="Exactly this tag" onChange={(text) => setParams({ view: "jobs", tag: text, cursor: "" })} />
      </div>
      <Problem error={source.error} />
      {NEWEST.includes(state) && !tag && <p class="quiet">Those that ended last come first.</p>}
      {source.data && (
        <Table label="Jobs" rows={list(source.data.jobs)} keyOf={(job) => job.id} isLoading={source.isLoading} none="There are no such jobs." columns={[
          ["State", (job) => <State state={job.state} />],
          ["Id", (job) => <a href={jobHref(name, { ...job, job_id: job.id })}><Short text={job.id} size={40} /></a>],
          ["Job", (job) => <Short text={job.name} size={50} />],
          ["Flow and node", (job) => job.flow_id && (
            <>
              <a href={flowLink(job.flow_id)}>{cut(job.flow_id, 40)}</a>
              {job.node && <>{" / "}<a href={nodeLink(job.flow_id, job.node)}>{cut(job.node, 40)}</a></>}
            </>
          )],
          ["Attempts", (job) => number(job.attempts), "number"],
          ["Created", (job) => <Time at={job.created_at} />],
          ["Ran", (job) => (job.started_at ? <Lasted from={job.started_at} to={job.finished_at} /> : "-")],
          ...(isActive ? [["Worker", (job) => <Short text={job.worker} size={30} />], ["Lease until", (job) => <Time at={job.lease_until} />]] : []),
          ["Reason", (job) => <Short text={job.reason} />, "wide"],
        ]} />
      )}
      <nav class="pages" aria-label="Pages of jobs">
        {cursor && <a href={queueLink(name, { view: "jobs", ...shown })}>First page</a>}
        {source.data?.next && <a href={queueLink(name, { view: "jobs", ...shown, cursor: source.data.next })}>Next page</a>}
      </nav>
    </section>
  );
}
