// A schedule: its next times and last runs, data and options.
import { useEffect } from "preact/hooks";
import { useData } from "../api.js";
import { jobLink, link, queueLink } from "../route.js";
import { State } from "../parts/states.jsx";
import { Pending, Problem, Table } from "../parts/table.jsx";
import { Payload, Short, cut, list, number, str } from "../parts/text.jsx";
import { Lasted, Time, exactly, instant } from "../parts/time.jsx";
import { Next, ScheduleButtons, whenText } from "./schedules.jsx";

export function Schedule({ queue, name }) {
  const source = useData(["queues", queue, "schedules", name]);
  const one = source.data;
  useEffect(() => {
    document.title = `${cut(name, 60)} - GlideMQ`;
  }, [name]);
  if (!one) return <Pending source={source} title={name}><p><a href={link(["schedules"])}>All schedules</a></p></Pending>;
  const facts = [
    ["Queue", <a href={queueLink(queue)}>{queue}</a>],
    ["Job", <code>{str(one.job)}</code>],
    ["When", whenText(one)],
    ["Next", <Next one={one} />],
    ["Last", <Time at={one.last_at} none="never" />],
    ["Runs", one.limit ? `${number(one.runs)} of ${number(one.limit)}` : number(one.runs)],
    ["Who runs it", one.python_only && "Python workers only"],
  ];
  return (
    <>
      <header class="head">
        <p class="crumbs"><a href={link(["schedules"])}>Schedules</a></p>
        <h1>{name}</h1>
        <ScheduleButtons one={one} reload={source.reload} />
      </header>
      <Problem error={source.error} />
      {one.broken && <section class="wrong bad"><p><strong>No worker can run this schedule.</strong> {str(one.broken)}</p></section>}
      <dl class="facts">{facts.filter(([, value]) => value).map(([word, value]) => <div key={word}><dt>{word}</dt><dd>{value}</dd></div>)}</dl>
      <section>
        <h2>Next times</h2>
        {list(one.next).length > 0
          ? <ol class="times">{list(one.next).map((at) => <li key={at}>{exactly(instant(at))} <span class="quiet"><Time at={at} /></span></li>)}</ol>
          : <p class="quiet">{one.finished ? "It has ended." : "None is known."}</p>}
      </section>
      <section>
        <h2>Last runs</h2>
        <p class="quiet">The newest jobs <code>{cut(one.job, 60)}</code> of its queue. Those that others have added are among them: most jobs do not say what added them.</p>
        <Table label="Last runs" rows={list(one.last)} keyOf={(job) => job.id} none="None is among the newest jobs of its queue." columns={[
          ["State", (job) => <State state={job.state} />],
          ["Job", (job) => <a href={jobLink(queue, job.id)}><Short text={job.id} size={40} /></a>],
          ["Added", (job) => <Time at={job.created_at} />],
          ["Ran", (job) => (job.started_at ? <Lasted from={job.started_at} to={job.finished_at} /> : "-")],
          ["Attempts", (job) => number(job.attempts), "number"],
          ["Reason", (job) => <Short text={job.reason} />, "wide"],
        ]} />
      </section>
      <div class="columns">
        <Payload title="Data" text={one.data} />
        <Payload title="Options" text={one.options} />
      </div>
    </>
  );
}
