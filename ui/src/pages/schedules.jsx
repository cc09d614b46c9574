// Schedules: when they run next, when they ran last.
import { useState } from "preact/hooks";
import { post, useData } from "../api.js";
import { queueLink } from "../route.js";
import { Action } from "../parts/dialog.jsx";
import { Problem, Search, Table } from "../parts/table.jsx";
import { cut, list, number, str } from "../parts/text.jsx";
import { Time } from "../parts/time.jsx";

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
          ["Schedule", (one) => <span class="name">{cut(one.name, 60)}</span>],
          ["Queue", (one) => <a href={queueLink(str(one.queue))}>{cut(one.queue, 40)}</a>],
          ["Job", (one) => <code>{cut(one.job, 50)}</code>],
          ["When", (one) => `${cut(one.when, 60)}${one.zone ? ` (${str(one.zone)})` : ""}`],
          ["Next", (one) => (one.paused ? <strong class="s-waiting">paused</strong>
            : one.broken ? <strong class="s-failed">cannot be read</strong> : <Time at={one.next_at} none={one.finished ? "ended" : "never"} />)],
          ["Last", (one) => <Time at={one.last_at} none="never" />],
          ["Runs", (one) => number(one.runs), "number"],
          ["Actions", (one) => <Buttons one={one} reload={source.reload} />],
        ]} />
      )}
      {!source.data && !source.error && <p class="quiet">Loading…</p>}
    </>
  );
}

function Buttons({ one, reload }) {
  const act = (verb, title, plan) => ({
    title: `${title}: ${str(one.name)}`, confirm: title, plan,
    run: async () => {
      const answer = await post(["queues", str(one.queue), "schedules", str(one.name), verb]);
      reload();
      return answer;
    },
  });
  return (
    <span class="buttons">
      <Action isSmall action={act("run", "Run now", "Its job is added once, now. The next times stay the same.")} />
      {one.paused === true && <Action isSmall action={act("resume", "Resume", "It adds its jobs again at its times.")} />}
      {one.paused === false && <Action isSmall action={act("pause", "Pause", "It adds no more jobs until it is resumed.")} />}
    </span>
  );
}
