// All queues: what waits, what runs, and who serves them.
import { useState } from "preact/hooks";
import { useData } from "../api.js";
import { queueLink } from "../route.js";
import { Bar } from "../parts/bar.jsx";
import { Problem, Search, Table } from "../parts/table.jsx";
import { cut, list, number, str } from "../parts/text.jsx";
import { duration } from "../parts/time.jsx";

const open = (counts) =>
  ["waiting", "delayed", "prioritized", "group-waiting"].reduce((sum, state) => sum + (Number(counts?.[state]) || 0), 0);

const count = (state) => (queue) =>
  <a class={state === "failed" && queue.counts?.failed > 0 ? "s-failed" : ""} href={queueLink(str(queue.name), { state })}>{list(queue.at_least).includes(state) && "at least "}{number(queue.counts?.[state] ?? 0)}</a>;

const COLUMNS = [
  ["Queue", (queue) => <a class="name" href={queueLink(str(queue.name))}>{cut(queue.name, 60)}</a>],
  ["Jobs", (queue) => <Bar states={queue.counts} />, "bars"],
  ["Waiting", count("waiting"), "number"],
  ["Active", count("active"), "number"],
  ["Delayed", count("delayed"), "number"],
  ["Failed", count("failed"), "number"],
  ["Oldest waits", (queue) => (Number.isFinite(queue.oldest_seconds) ? duration(queue.oldest_seconds) : "-"), "number"],
  ["Workers", (queue) => (
    <span>
      {number(queue.workers ?? 0)}
      {queue.subscribers > 0 && `, ${number(queue.subscribers)} of subscriptions`}
      {list(queue.dead_letters_of).length > 0 && <span class="quiet"> dead letters of {cut(queue.dead_letters_of.join(", "), 60)}</span>}
      {!queue.workers && !list(queue.dead_letters_of).length && open(queue.counts) > 0 && <strong class="s-failed"> none serves it</strong>}
      {queue.paused && <strong class="s-waiting"> paused</strong>}
    </span>
  )],
];

export function Queues() {
  const source = useData(["queues"]);
  const [text, setText] = useState("");
  const rows = list(source.data?.queues).filter((queue) => str(queue.name).toLowerCase().includes(text.toLowerCase()));
  return (
    <>
      <h1>Queues</h1>
      <div class="filters"><Search label="Name" value={text} onChange={setText} /></div>
      <Problem error={source.error} />
      {source.data && <Table label="Queues" columns={COLUMNS.filter(([head]) => head !== "Oldest waits" || rows.some((one) => Number.isFinite(one.oldest_seconds)))} rows={rows} keyOf={(queue) => queue.name} none="There is no queue." />}
      {rows.length > 0 && <p class="quiet">Jobs that wait for other jobs or for their ordering key are only counted on the page of their queue.</p>}
      {!source.data && !source.error && <p class="quiet">Loading…</p>}
    </>
  );
}
