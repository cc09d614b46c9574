// Where the code of a handler is: what the data of a job names, or what the workers of its queue tell.
import { Copy, cut, list, number, plural, str } from "./text.jsx";

const ENDED = ["completed", "failed", "skipped"];
const FEW = 3;

/** `etl.steps:clean (etl/steps.py:41)` */
export const Path = ({ code }) => (
  <>{code.subscription && `subscription ${cut(code.subscription, 60)}: `}<code>{cut(code.path, 200)}</code>{code.file && <span class="quiet"> ({cut(code.file, 200)})</span>}</>
);

const place = (worker) => `${cut(worker.host, 60)} ${str(worker.pid)}`;

function Version({ version }) {
  const some = list(version.workers);
  const more = Number(version.count) - some.length;
  return (
    <li>
      <Path code={version} /> <Copy text={str(version.path)} />
      <span class="quiet" title={some.map((worker) => str(worker.id)).join("\n")}>
        {version.digest && ` source ${version.digest}`} on {some.map(place).join(", ")}{more > 0 && ` and ${number(more)} more`}
      </span>
    </li>
  );
}

/** The code of a node or job; null if nobody tells. Of several versions, each says which workers have it. */
export function codeOf({ code, handler, state }) {
  const versions = list(handler?.code);
  const unserved = handler?.served_by === 0 && (
    <div class={ENDED.includes(state) ? "quiet" : "s-failed"}>No worker that serves this handler is there now.</div>
  );
  if (code) return <><code>{str(code)}</code> <Copy text={str(code)} />{unserved}</>;
  if (unserved) return unserved;
  if (versions.length === 1) return <><Path code={versions[0]} /> <Copy text={str(versions[0].path)} /></>;
  if (!versions.length) return null;
  return (
    <>
      {versions.every((one) => !one.subscription) && <strong>Its workers have {plural(versions.length, "version")}</strong>}
      <ul class="names">{versions.map((version) => <Version key={`${version.subscription} ${version.path} ${version.file} ${version.digest}`} version={version} />)}</ul>
    </>
  );
}

/** The handlers of a worker, each with its code. */
export function Handlers({ worker }) {
  const names = worker.subscription ? [worker.subscription] : list(worker.handlers);
  const some = names.slice(0, 100);
  if (!names.length) return null;
  const rows = (
    <ul class="names handlers">
      {some.map((name) => (
        <li key={name}>{worker.subscription && "subscription "}{cut(name, 100)}{worker.code?.[name] && <div class="quiet"><Path code={worker.code[name]} /></div>}</li>
      ))}
      {names.length > some.length && <li class="quiet">and {number(names.length - some.length)} more</li>}
    </ul>
  );
  if (names.length <= FEW) return rows;
  return (
    <details class="handlers">
      <summary title={some.join(", ")}>{plural(names.length, "handler")}: {cut(some.join(", "), 60)}</summary>
      {rows}
    </details>
  );
}
