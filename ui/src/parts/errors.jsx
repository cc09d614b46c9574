// Errors grouped by their cause.
import { Time } from "./time.jsx";
import { cut, list, number, plural, str } from "./text.jsx";

export function Failures({ groups, href, limit = Infinity, noun = "node", more = null }) {
  const found = list(groups);
  return (
    <ol class="failures">
      {found.slice(0, limit).map((group) => (
        <li key={group.group}>
          <p class="reason">{cut(group.reason, 600) || "No reason was recorded."}</p>
          <p>
            <strong>{plural(group.count, noun)}</strong>
            {", first "}<Time at={group.first_at} />{", last "}<Time at={group.last_at} />
            {group.held_back > 0 && (
              <span class="s-failed">. It holds back {plural(group.held_back, "more node")}</span>
            )}
            .
          </p>
          <p class="examples">
            {href && list(group.examples).slice(0, 5).map((one) => {
              const name = str(one.node ?? one.job_id ?? one);
              return <a key={name} href={href(one)} title={name}>{cut(name, 60)}</a>;
            })}
            {href && list(group.examples).length > 0 && group.count > Math.min(5, list(group.examples).length) && (
              <span class="quiet">and {number(group.count - Math.min(5, list(group.examples).length))} more</span>
            )}
            {more?.(group)}
          </p>
        </li>
      ))}
    </ol>
  );
}
