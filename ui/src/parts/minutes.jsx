// Completed and failed jobs by time, as columns, and what they add up to.
import { now } from "../api.js";
import { duration, exactly, instant } from "./time.jsx";
import { list, number } from "./text.jsx";

const HIGH = 120;
const MINUTE = 60000;

/** One entry for each span of time until now, also for those in which no job ended. */
function filled(points, count, span) {
  const known = new Map(list(points).map((one) => [Math.floor(instant(one.at) / span), one]));
  const last = Math.floor(now() / span);
  return Array.from({ length: count }, (_, index) => {
    const place = last - count + 1 + index;
    const { completed, failed, mean } = known.get(place) ?? {};
    return { at: place * span, completed: Number(completed) || 0, failed: Number(failed) || 0, mean };
  });
}

const ran = (mean) => (Number.isFinite(mean) ? `, ran ${duration(mean)} on average` : "");

function Columns({ points, count, span, unit }) {
  const found = filled(points, count, span);
  const most = Math.max(1, ...found.map(({ completed, failed }) => completed + failed));
  const completed = found.reduce((sum, one) => sum + one.completed, 0);
  const failed = found.reduce((sum, one) => sum + one.failed, 0);
  if (!completed && !failed) return <p class="quiet">No job has ended.</p>;
  const words = `${number(completed)} completed and ${number(failed)} failed; at most ${number(most)} in ${unit}`;
  const wide = 600 / found.length;
  return (
    <figure class="minutes">
      <svg viewBox={`0 0 600 ${HIGH}`} preserveAspectRatio="none" role="img" aria-label={words}>
        {found.map((one, index) => {
          const good = (one.completed / most) * (HIGH - 4);
          const bad = one.failed ? Math.max(2, (one.failed / most) * (HIGH - 4)) : 0;
          return (
            <g key={index}>
              <title>{`${exactly(one.at)}: ${number(one.completed)} completed, ${number(one.failed)} failed${ran(one.mean)}`}</title>
              <rect x={index * wide} width={wide} y="0" height={HIGH} class="row" />
              <rect x={index * wide} width={Math.max(1, wide - 1)} y={HIGH - good} height={good} class="f-completed" />
              <rect x={index * wide} width={Math.max(1, wide - 1)} y={HIGH - good - bad} height={bad} class="f-failed" />
            </g>
          );
        })}
      </svg>
      <figcaption class="quiet">{words}.</figcaption>
    </figure>
  );
}

/** How many jobs in a minute, or in an hour where that is below one. */
function pace(count, minutes) {
  const each = count / minutes;
  if (!count) return "none";
  return each >= 1 ? `${number(Number(each.toFixed(each < 10 ? 1 : 0)))} a minute` : `${number(Number((each * 60).toFixed(1)))} an hour`;
}

const span = (value) => (Number.isFinite(value) ? duration(value) : "-");

function Facts({ totals, minutes }) {
  if (!totals) return null;
  const ended = totals.completed + totals.failed;
  const share = ended > 0 && totals.failed > 0 ? ` (${((100 * totals.failed) / ended).toFixed(1)} %)` : "";
  const { waiting, running } = totals;
  return (
    <>
      <dl class="facts">
        <div><dt>Completed</dt><dd>{number(totals.completed)}</dd></div>
        <div><dt>Failed</dt><dd class={totals.failed > 0 ? "s-failed" : ""}>{number(totals.failed)}{share}</dd></div>
        <div><dt>Retried</dt><dd>{number(totals.retried)}</dd></div>
        <div><dt>Ended</dt><dd>{pace(ended, minutes)}</dd></div>
      </dl>
      <dl class="facts">
        <div><dt>Waited: mean, 50 %, 95 %, 99 %</dt><dd>{[waiting?.mean, waiting?.p50, waiting?.p95, waiting?.p99].map(span).join(", ")}</dd></div>
        <div><dt>Ran, elements of arrays too: mean, 50 %, 95 %, 99 %</dt><dd>{[running?.mean ?? totals.mean, running?.p50, running?.p95, running?.p99].map(span).join(", ")}</dd></div>
      </dl>
    </>
  );
}

/** The last hour by minute and the last day by quarter of an hour. */
export function Rates({ queue }) {
  return (
    <div class="columns">
      <section>
        <h2>The last hour</h2>
        <Facts totals={queue.hour} minutes={60} />
        <Columns points={queue.minutes} count={60} span={MINUTE} unit="one minute" />
      </section>
      <section>
        <h2>The last day</h2>
        <Facts totals={queue.day} minutes={24 * 60} />
        <Columns points={queue.quarters} count={96} span={15 * MINUTE} unit="a quarter of an hour" />
      </section>
    </div>
  );
}
