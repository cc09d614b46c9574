// A job that is no node of a flow: data, result, log, history.
import { useEffect } from "preact/hooks";
import { post, useData } from "../api.js";
import { flowLink, link, nodeLink, queueLink, scheduleLink } from "../route.js";
import { codeOf } from "../parts/code.jsx";
import { Action } from "../parts/dialog.jsx";
import { State, wordOf } from "../parts/states.jsx";
import { Track } from "../parts/queue_lists.jsx";
import { Pending, Problem, Table } from "../parts/table.jsx";
import { Payload, cut, list, number, plural, str } from "../parts/text.jsx";
import { Lasted, Time } from "../parts/time.jsx";

export function Job({ queue, id }) {
  const source = useData(["queues", queue, "jobs", id]);
  const job = source.data;
  useEffect(() => {
    document.title = `${job ? `${wordOf(job.state)}: ` : ""}${cut(id, 60)} - GlideMQ`;
  }, [id, job?.state]);
  if (!job) return <Pending source={source} title={id}><p><a href={queueLink(queue)}>The queue</a></p></Pending>;
  const run = async () => {
    await post(["queues", queue, "jobs", id, "retry"]);
    source.reload();
  };
  const retry = { title: "Retry this job", confirm: "Retry this job", plan: "The job waits for a worker again, with all its attempts.", run };
  const facts = [
    ["Job", <code>{str(job.name)}</code>],
    ["Code", codeOf(job)],
    ["Flow", job.flow_id && <a href={job.node ? nodeLink(job.flow_id, job.node) : flowLink(job.flow_id)}>{str(job.node ?? job.flow_id)}</a>],
    ["Schedule", job.schedule && <a href={scheduleLink(queue, job.schedule)}>{cut(job.schedule, 80)}</a>],
    ["Attempts", number(job.attempts)],
    ["Created", <Time at={job.created_at} />],
    ["Started", job.started_at && <Time at={job.started_at} />],
    ["Ended", job.finished_at && <Time at={job.finished_at} />],
    ["Worker", str(job.worker)],
    ["Lease until", job.lease_until && <Time at={job.lease_until} />],
    ["Lost with its worker", job.lost > 0 && plural(job.lost, "time")],
    ["Ordering key", job.ordering_key && <a href={queueLink(queue, { view: "keys" })}>{cut(job.ordering_key, 60)}</a>],
    ["Tags", list(job.tags).length > 0 && (
      <ul class="labels">{list(job.tags).map((tag) => <li key={tag}><a href={queueLink(queue, { tag })}>{cut(tag, 60)}</a></li>)}</ul>
    )],
    ["Ran", job.started_at && <Lasted from={job.started_at} to={job.finished_at} />],
  ];
  return (
    <>
      <header class="head">
        <p class="crumbs"><a href={link(["queues"])}>Queues</a> / <a href={queueLink(queue)}>{cut(queue, 60)}</a></p>
        <h1><State state={job.state} /> {id}</h1>
        <p class="buttons">
          {job.state === "failed" && !job.flow_id && <Action action={retry} />}
          <Track queue={queue} job={job} reload={source.reload} />
        </p>
      </header>
      <Problem error={source.error} />
      {job.reason && (
        <section class={job.state === "failed" ? "wrong bad" : "wrong"} aria-labelledby="reason">
          <h2 id="reason">{job.state === "failed" ? "Why it failed" : "Last error"}</h2>
          <pre class="reason" tabIndex="0" aria-label="Error">{str(job.reason)}</pre>
        </section>
      )}
      <dl class="facts">
        {facts.filter(([, value]) => value).map(([word, value]) => <div key={word}><dt>{word}</dt><dd>{value}</dd></div>)}
      </dl>
      <section>
        <h2>Log</h2>
        {list(job.logs?.lines).length > 0
          ? <pre class="log" tabIndex="0" aria-label="Log">{list(job.logs.lines).map(str).join("\n")}</pre>
          : <p class="quiet">No lines.</p>}
      </section>
      <div class="columns">
        <Payload title="Data" text={job.data} />
        <Payload title="Result" text={job.result} />
      </div>
      <section>
        <h2>History</h2>
        <Table label="History" rows={list(job.history)} none="No event is recorded."
          columns={[["When", (row) => <Time at={row.at} />], ["What", (row) => str(row.what)], ["Detail", (row) => cut(row.detail, 500), "wide"]]} />
        {job.history_is_partial && <p class="quiet">Events may be missing: the job records its history if it is added with history, or is tracked.</p>}
      </section>
    </>
  );
}
