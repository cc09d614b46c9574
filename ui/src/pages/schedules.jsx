// Schedules: when they run next, when they ran last.
import { useState } from "preact/hooks";
import { post, useData } from "../api.js";
import { queueLink, scheduleLink } from "../route.js";
import { Action } from "../parts/dialog.jsx";
import { Problem, Search, Table } from "../parts/table.jsx";
import { cut, list, number, str } from "../parts/text.jsx";
import { Time } from "../parts/time.jsx";

export const whenText = (one) => `${cut(one.when, 60)}${one.zone ? ` (${str(one.zone)})` : ""}`;

export function Next({ one }) {
  if (one.paused) return <strong class="s-waiting">paused</strong>;
  if (one.broken) return <strong class="s-failed" title={str(one.broken)}>cannot run</strong>;
  return <Time at={one.next_at} none={one.finished ? "ended" : "after this run"} />;
}

export function Schedules() {
  const source = useData(["schedules"]);
  const [text, setText] = useState("");
  const rows = list(source.data?.schedules).filter((one) =>
    `${str(one.name)} ${str(one.queue)} ${str(one.job)}`.toLowerCase().includes(text.toLowerCase()));
  return (
    <>
      <h1>Schedules</h1>
      <div class="filters"><Search label="Name, queue or job" value={text} onChange={setText} /></div>
      <Problem error={source.error} />
      {source.data && (
        <Table label="Schedules" rows={rows} keyOf={(one) => `${one.queue} ${one.name}`} none="There are no schedules." columns={[
          ["Schedule", (one) => <a class="name" href={scheduleLink(one.queue, one.name)} title={str(one.name)}>{cut(one.name, 60)}</a>],
          ["Queue", (one) => <a href={queueLink(str(one.queue))}>{cut(one.queue, 40)}</a>],
          ["Job", (one) => <code>{cut(one.job, 50)}</code>],
          ["When", whenText],
          ["Next", (one) => <Next one={one} />],
          ["Last", (one) => <Time at={one.last_at} none="never" />],
          ["Runs", (one) => (one.limit ? `${number(one.runs)} of ${number(one.limit)}` : number(one.runs)), "number"],
          ["Actions", (one) => <ScheduleButtons isSmall one={one} reload={source.reload} />],
        ]} />
      )}
      {!source.data && !source.error && <p class="quiet">Loading…</p>}
    </>
  );
}

/** What can be done with a schedule, each after a dialog that says what it is about to do. */
export function ScheduleButtons({ one, reload, isSmall = false }) {
  const act = (verb, title, plan, done) => ({
    title: `${title}: ${str(one.name)}`, confirm: title, plan, done,
    run: async () => {
      const answer = await post(["queues", str(one.queue), "schedules", str(one.name), verb]);
      reload();
      return answer;
    },
  });
  const plan = `Adds one job ${cut(one.job, 60)} to the queue ${cut(one.queue, 60)} now, with the data and options of this schedule. Its next times stay as they are, and the run is not counted.`;
  return (
    <span class="buttons">
      <Action isSmall={isSmall} action={act("run", "Run now", plan, (answer) => `Job ${str(answer?.job_id)} was added.`)} />
      {one.paused && (
        <Action isSmall={isSmall} action={act("resume", "Resume", "It adds jobs at its times again. Times that passed during the pause are left out.", () => `${str(one.name)} was resumed.`)} />
      )}
      {!one.paused && !one.finished && (
        <Action isSmall={isSmall} action={act("pause", "Pause", "It adds no more jobs until it is resumed. Jobs that it has added stay.", () => `${str(one.name)} was paused.`)} />
      )}
    </span>
  );
}
