// Errors grouped by their cause.
import { Time } from "./time.jsx";
import { cut, list, number, plural, str } from "./text.jsx";

const Rest = ({ href, count }) =>
  href ? <a href={href}>and {number(count)} more</a> : <span class="quiet">and {number(count)} more</span>;

/** `href` leads to an example, `rest` to where the others are. */
export function Failures({ groups, href, limit = Infinity, noun = "node", more = null, rest = null }) {
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
              <span class="s-failed">. {group.count === 1 ? "It holds" : "They hold"} back {plural(group.held_back, "more node")}</span>
            )}
            .
          </p>
          <p class="examples">
            {href && list(group.examples).slice(0, 5).map((one) => {
              const name = str(one.node ?? one.job_id ?? one);
              return <a key={name} href={href(one)} title={name}>{cut(name, 60)}</a>;
            })}
            {href && list(group.examples).length > 0 && group.count > Math.min(5, list(group.examples).length) && (
              <Rest href={rest} count={group.count - Math.min(5, list(group.examples).length)} />
            )}
            {more?.(group)}
          </p>
        </li>
      ))}
    </ol>
  );
}
