// Completed and failed jobs by minute, as columns.
import { now } from "../api.js";
import { exactly, instant } from "./time.jsx";
import { list, number } from "./text.jsx";

const HIGH = 120;

/** One entry for each of the last 60 minutes, also for those without any. */
function hour(minutes) {
  const known = new Map(list(minutes).map((one) => [Math.floor(instant(one.at) / 60000), one]));
  const last = Math.floor(now() / 60000);
  return Array.from({ length: 60 }, (_, index) => {
    const minute = last - 59 + index;
    const { completed, failed } = known.get(minute) ?? {};
    return { at: minute * 60000, completed: Number(completed) || 0, failed: Number(failed) || 0 };
  });
}

export function Minutes({ minutes }) {
  const found = hour(minutes);
  const most = Math.max(1, ...found.map(({ completed, failed }) => completed + failed));
  const completed = found.reduce((sum, one) => sum + one.completed, 0);
  const failed = found.reduce((sum, one) => sum + one.failed, 0);
  if (!completed && !failed) return <p class="quiet">No job has ended.</p>;
  const words = `${number(completed)} completed and ${number(failed)} failed; at most ${number(most)} in one minute`;
  const wide = 600 / found.length;
  return (
    <figure class="minutes">
      <svg viewBox={`0 0 600 ${HIGH}`} preserveAspectRatio="none" role="img" aria-label={words}>
        {found.map((one, index) => {
          const good = (one.completed / most) * (HIGH - 4);
          const bad = one.failed ? Math.max(2, (one.failed / most) * (HIGH - 4)) : 0;
          return (
            <g key={index}>
              <title>{`${exactly(one.at)}: ${number(one.completed)} completed, ${number(one.failed)} failed`}</title>
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
