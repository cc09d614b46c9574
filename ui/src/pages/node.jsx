// A node: why it waits or failed, its times, data, inputs, result and logs.
import { useEffect, useRef, useState } from "preact/hooks";
import { get, post, url, useData, useLive } from "../api.js";
import { flowLink, go, link, nodeLink, queueLink } from "../route.js";
import { Bar } from "../parts/bar.jsx";
import { codeOf } from "../parts/code.jsx";
import { Action } from "../parts/dialog.jsx";
import { statesOf } from "../parts/graph.jsx";
import { progressFacts, sparkLink } from "../parts/progress.jsx";
import { State, wordOf } from "../parts/states.jsx";
import { Pending, Problem, Table } from "../parts/table.jsx";
import { Copy, Payload, cut, list, number, plural, str } from "../parts/text.jsx";
import { Lasted, Time, Why, duration } from "../parts/time.jsx";

const ENDED = ["completed", "failed", "skipped"];

const POLL = 5000; // milliseconds
const BEHIND = 30000; // where the stream of changes tells what is new
const SOON = 3000;

/** The node. Where it is an array, or an element of one, the changes of its flow say when there is news. */
function useNode(id, name) {
  const [every, setEvery] = useState(POLL);
  const source = useData(["flows", id, "nodes", name], {}, every);
  const node = source.data;
  const array = node?.array ? name : node?.element?.array;
  const isLive = Boolean(array) && !ENDED.includes(node.state);
  const loaded = useRef(0);
  useEffect(() => setEvery(isLive ? BEHIND : POLL), [isLive]);
  useLive(id, isLive, (change) => {
    const counts = change?.arrays?.[array];
    if (!counts) return;
    const isOther = !node.array || counts.failed !== node.array.failed;
    if (node.array) source.change((data) => ({ ...data, array: counts }));
    if (isOther && Date.now() - loaded.current > SOON) {
      loaded.current = Date.now();
      source.reload();
    }
  }, source.reload);
  return source;
}

export function Node({ id, name }) {
  const source = useNode(id, name);
  const node = source.data;
  useEffect(() => {
    document.title = `${node ? `${wordOf(node.state)}: ` : ""}${cut(name, 60)} - GlideMQ`;
  }, [name, node?.state]);
  if (!node) return <Pending source={source} title={name}><p><a href={flowLink(id)}>The flow</a></p></Pending>;
  const isOver = ENDED.includes(node.state);
  const what = node.element ? "element" : "node";
  const whole = (part) => url(["flows", id, "nodes", name, part]);
  return (
    <>
      <header class="head">
        <p class="crumbs"><a href={link(["flows"])}>Flows</a> / <a href={flowLink(id)}>{cut(id, 60)}</a></p>
        <h1><State state={node.state} /> {name}</h1>
        {node.element && (
          <p>
            Element {number(node.element.index)} of the {number(node.element.of)} of <a href={nodeLink(id, node.element.array)}>{cut(node.element.array, 80)}</a>.
          </p>
        )}
        <p class="buttons">
          {isOver && <Change {...{ id, name }} action="rerun" title={`Run this ${what} again`} reload={source.reload} />}
          {!isOver && <Change {...{ id, name }} action="cancel" title={`Cancel this ${what}`} reload={source.reload} isDanger />}
        </p>
      </header>
      <Problem error={source.error} />
      {!isOver && <Waits id={id} node={node} />}
      {node.reason && (
        <section class={node.state === "failed" ? "wrong bad" : "wrong"} aria-labelledby="reason">
          <h2 id="reason">{node.state === "failed" ? "Why it failed" : "Last error"}</h2>
          <pre class="reason" tabIndex="0" aria-label="Error">{str(node.reason)}</pre>
          {node.cause && <p>The cause is <a href={nodeLink(id, node.cause.name)}>{cut(node.cause.name, 80)}</a> <State state={node.cause.state} />: <code>{cut(node.cause.reason, 600)}</code></p>}
          {node.ignored && <p>The flow ignores this failure.</p>}
        </section>
      )}
      {node.array && <Elements id={id} name={name} array={node.array} states={{ [node.state]: 1 }} failed={list(node.failed_elements)} />}
      <Facts node={node} />
      {node.element
        ? <section><h2>Log</h2><p class="quiet">Its lines are in the <a href={nodeLink(id, node.element.array)}>log of the array</a>: they begin with [{node.element.index}].</p></section>
        : <Logs id={id} name={name} first={node.logs} isLive={!isOver} />}
      <div class="columns">
        <Payload title="Data" text={node.data} whole={whole("data")} />
        <Payload title="Result" text={node.result} whole={whole("result")} />
      </div>
      <Inputs id={id} inputs={node.inputs} />
      <Around id={id} title="Depends on" names={node.after} count={node.after_count} />
      <Around id={id} title="Nodes that depend on it" names={node.dependents} />
      <section>
        <h2>History</h2>
        <Table label="History" rows={list(node.history)} none="No event is recorded."
          columns={[["When", (row) => <Time at={row.at} />], ["What", (row) => str(row.what)], ["Detail", (row) => cut(row.detail, 500), "wide"]]} />
        {node.history_is_partial && <p class="quiet">Events may be missing: a node records its history if it has the option history.</p>}
      </section>
    </>
  );
}

function Change({ id, name, action, title, reload, isDanger }) {
  const plan = async () => str((await get(["flows", id, "nodes", name, "plan"], { action })).text);
  const run = async () => {
    const answer = await post(["flows", id, "nodes", name, action]);
    reload();
    return answer;
  };
  const done = () => `${name} ${action === "rerun" ? "runs again" : "was ended as failed"}.`;
  return <Action isDanger={isDanger} action={{ title, confirm: title, plan, run, done, isDanger }} />;
}

/** What a node waits for: what holds it back itself, its dependencies that have not ended, and what these wait for. */
function Waits({ id, node }) {
  const open = list(node.waits_for);
  const first = list(node.held_by);
  const isDue = node.state === "waiting-children" && !node.waits_for_count && !node.wait;
  if (!node.wait && !open.length && !isDue) return null;
  return (
    <section class="wrong" aria-labelledby="wait">
      <h2 id="wait">What it waits for</h2>
      {node.wait && <p class="sentence"><Why wait={node.wait} /><Where node={node} />.</p>}
      {isDue && <p>Its dependencies have ended. Workers and supervisors of the queues of its flow let it start.</p>}
      {open.length > 0 && (
        <>
          <p>{number(node.waits_for_count)} of its {plural(node.after_count, "dependency", "dependencies")} {node.waits_for_count === 1 ? "has" : "have"} not ended:</p>
          <WaitedFor id={id} rows={open} count={node.waits_for_count} />
        </>
      )}
      {first.length > 0 && <><p>{open.length === 1 ? "That waits" : "Those wait"} in the end for:</p><WaitedFor id={id} rows={first} count={node.held_by_count} /></>}
    </section>
  );
}

/** The limits or the pause that hold it back are on other pages. */
function Where({ node }) {
  const queue = str(node.queue);
  if (node.state === "group-waiting") return <>{" ("}<a href={queueLink(queue, { view: "keys" })}>ordering keys of {queue}</a>)</>;
  return (["waiting", "prioritized"].includes(node.state) || node.array) && <>{" ("}<a href={queueLink(queue)}>queue {queue}</a>)</>;
}

/** How many elements of an array run at this moment. */
const runNow = ({ running }) => (running > 0 ? `${number(running)} ${running === 1 ? "runs" : "run"} now` : "none runs now");

function WaitedFor({ id, rows, count }) {
  return (
    <ul class="waits">
      {rows.map((one) => (
        <li key={one.name}>
          <a href={nodeLink(id, one.name)}>{cut(one.name, 80)}</a> <State state={one.state} />
          {one.array && <span>, {number(one.array.completed + one.array.failed + one.array.skipped)} of {plural(one.array.elements, "element")} ended, {runNow(one.array)}</span>}
          {one.started_at && <span>, began <Time at={one.started_at} /></span>}
          {one.wait && <span>, <Why wait={one.wait} /></span>}
          {one.open > 0 && !one.wait && <span>: {plural(one.open, "dependency", "dependencies")} not ended</span>}
        </li>
      ))}
      {count > rows.length && <li class="quiet">and {number(count - rows.length)} more</li>}
    </ul>
  );
}

function Elements({ id, name, array, states, failed }) {
  const [index, setIndex] = useState("");
  const open = (event) => {
    event.preventDefault();
    go(["flows", id, "nodes", `${name}[${index}]`]);
  };
  return (
    <section>
      <h2>{plural(array.elements, "element")}</h2>
      <Bar states={statesOf({ array, states })} isWordy />
      {states.active > 0 && Number.isFinite(array.running) && <p>Of its elements, {runNow(array)}.</p>}
      <form class="filters" onSubmit={open}>
        <label>
          Position of an element, from 0
          <input type="number" min="0" max={array.elements - 1} required value={index} onInput={(event) => setIndex(event.target.value)} />
        </label>
        <button type="submit">Open the element</button>
      </form>
      {failed.length > 0 && <FailedElements id={id} name={name} count={array.failed} failed={failed} />}
    </section>
  );
}

const MOST_FAILED = 1000; // elements

function FailedElements({ id, name, count, failed: first }) {
  const [isLong, setLong] = useState(false);
  const source = useData(isLong ? ["flows", id, "nodes", name, "failed-elements"] : null, { limit: MOST_FAILED }, BEHIND);
  const failed = isLong && source.data ? list(source.data.elements) : first;
  const columns = [
    ["Element", (one) => <a href={nodeLink(id, `${name}[${one.index}]`)}>{`[${number(one.index)}]`}</a>],
    ["Attempts", (one) => number(one.attempts)],
    ["Why", (one) => <code>{str(one.reason)}</code>],
  ];
  return (
    <>
      <h3>{plural(count, "failed element")}</h3>
      <Table label="Failed elements" columns={columns} rows={failed} keyOf={(one) => one.index} />
      {count > failed.length && (
        <p>
          {number(failed.length)} of them.{" "}
          {!isLong && <button type="button" onClick={() => setLong(true)}>Show {count > MOST_FAILED ? number(MOST_FAILED) : `all ${number(count)}`}</button>}
        </p>
      )}
      {isLong && <Problem error={source.error} />}
    </>
  );
}

function Facts({ node }) {
  const facts = [
    ["Job", <code>{str(node.job)}</code>],
    ["Code", codeOf(node)],
    ["Queue", <a href={queueLink(str(node.queue))}>{str(node.queue)}</a>],
    ["Job id", node.job_id && <><code>{str(node.job_id)}</code> <Copy text={str(node.job_id)} /></>],
    ["Attempts", number(node.attempts)],
    ["Reruns", node.reruns > 0 && number(node.reruns)],
    ["Worker", str(node.worker)],
    ["Started", node.started_at && <Time at={node.started_at} />],
    ["Ended", node.finished_at && <Time at={node.finished_at} />],
    ["Ran", Number.isFinite(node.seconds) ? duration(node.seconds) : node.state === "active" && <Lasted from={node.started_at} />],
    ["Spark", sparkLink(node) && <a href={sparkLink(node)} target="_blank" rel="noopener noreferrer">Spark UI</a>],
    ...(node.array ? [] : progressFacts(node.progress)),
  ];
  return (
    <dl class="facts">
      {facts.filter(([, value]) => value).map(([word, value]) => <div key={word}><dt>{word}</dt><dd>{value}</dd></div>)}
    </dl>
  );
}

function Inputs({ id, inputs }) {
  const names = Object.keys(inputs ?? {});
  if (!names.length) return null;
  return (
    <section>
      <h2>Inputs</h2>
      {names.slice(0, 50).map((name) => (
        <details key={name}>
          <summary>{cut(name, 80)}</summary>
          <Payload title={`Result of ${cut(name, 60)}`} text={inputs[name]} />
          <p><a href={nodeLink(id, name)}>Open {cut(name, 60)}</a></p>
        </details>
      ))}
      {names.length > 50 && <p class="quiet">The first 50 of {number(names.length)} inputs.</p>}
    </section>
  );
}

function Around({ id, title, names, count }) {
  const [most, setMost] = useState(50);
  const found = list(names);
  if (!found.length) return null;
  return (
    <section>
      <h2>{title}{count > 1 && ` (${number(count)})`}</h2>
      <ul class="names">
        {found.slice(0, most).map((name) => <li key={name}><a href={nodeLink(id, name)}>{cut(name, 80)}</a></li>)}
      </ul>
      {found.length > most && <button type="button" onClick={() => setMost(most + 500)}>Show more</button>}
    </section>
  );
}

/** The log, with what is added while the node runs. */
function Logs({ id, name, first, isLive }) {
  const [lines, setLines] = useState(list(first?.lines));
  const [isFollowed, setFollowed] = useState(true);
  const total = useRef(Number(first?.total) || lines.length);
  const box = useRef();
  const wasLive = useRef(false);
  useEffect(() => {
    if (!isLive && !wasLive.current) return undefined; // it is all there
    wasLive.current = isLive;
    let isOver = false;
    let timer;
    const more = async () => {
      try {
        const answer = await get(["flows", id, "nodes", name, "logs"], { after: total.current });
        if (isOver) return;
        if (answer.total < total.current) setLines([]); // it has started over
        total.current = answer.total < total.current ? 0 : Number(answer.total) || 0;
        if (list(answer.lines).length) setLines((old) => [...old, ...list(answer.lines)].slice(-5000));
      } catch {
        // it is asked again
      }
      if (!isOver && isLive) timer = setTimeout(more, 2000);
    };
    timer = setTimeout(more, isLive ? 2000 : 500);
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, [id, name, isLive]);
  useEffect(() => {
    if (isFollowed && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines, isFollowed]);
  return (
    <section>
      <h2>Log</h2>
      {lines.length > 0 ? (
        <>
          {total.current > lines.length && <p class="quiet">The last {number(lines.length)} of {number(total.current)} lines.</p>}
          <pre class="log" ref={box} tabIndex="0" role="log" aria-label="Log">{lines.map(str).join("\n")}</pre>
          {isLive && (
            <label class="check">
              <input type="checkbox" checked={isFollowed} onChange={(event) => setFollowed(event.target.checked)} /> Follow the end
            </label>
          )}
        </>
      ) : <p class="quiet">No lines.</p>}
    </section>
  );
}
