// A flow: what is wrong, its graph, timeline, nodes and errors; live while it runs.
import { useEffect, useRef, useState } from "preact/hooks";
import { announce, get, post, useData, useLive } from "../api.js";
import { flowLink, go, link, nodeLink, queueLink, route, setParams } from "../route.js";
import { Bar, countsOf } from "../parts/bar.jsx";
import { Action } from "../parts/dialog.jsx";
import { Failures } from "../parts/errors.jsx";
import { Graph } from "../parts/graph.jsx";
import { Groups } from "../parts/groups.jsx";
import { Nodes } from "../parts/nodes.jsx";
import { State, wordOf } from "../parts/states.jsx";
import { Again, Loading, Pending, Problem } from "../parts/table.jsx";
import { Copy, Labels, cut, list, number, plural, str } from "../parts/text.jsx";
import { Lasted, Time, Why } from "../parts/time.jsx";
import { Timeline } from "../parts/timeline.jsx";

const VIEWS = [["graph", "Graph"], ["timeline", "Timeline"], ["nodes", "Nodes"], ["errors", "Errors"]];
const ENDED = ["completed", "failed", "cancelled"];
const MANY = 1000; // nodes; beyond, what costs a read of them all is read less often
const MARKS = ["state", "generation", "created_at", "total", "completed", "failed"]; // what changes when a flow runs again
const isOver = (flow) => ENDED.includes(flow.state);

/** Counts by state of the whole flow, from those of its groups. */
function total(groups) {
  const sum = {};
  for (const { states } of groups) for (const [state, count] of Object.entries(states ?? {})) sum[state] = (sum[state] ?? 0) + count;
  return sum;
}

function merge(data, change) {
  const groups = list(data.groups).slice();
  for (const [index, states] of Object.entries(change.states ?? {})) {
    if (groups[index] && states) groups[index] = { ...groups[index], states };
  }
  for (const [name, array] of Object.entries(change.arrays ?? {})) {
    const index = groups.findIndex((one) => one.key === name && one.count === 1);
    if (index >= 0) groups[index] = { ...groups[index], array };
  }
  return { ...data, groups, flow: { ...data.flow, ...change.flow, total: data.flow.total } };
}

/** The flow, changed as it changes; loaded again when it has other nodes, and at times: changes have no times. */
function useFlow(id) {
  const [every, setEvery] = useState(15000);
  const source = useData(["flows", id], {}, every);
  const { flow } = source.data ?? {};
  const isLive = Boolean(flow) && !isOver(flow);
  const before = useRef(null);
  const loaded = useRef(0);
  useEffect(() => {
    if (!flow) return;
    setEvery(isOver(flow) ? 30000 : flow.total > MANY ? 60000 : 15000);
    document.title = `${wordOf(flow.state)}: ${cut(flow.name || flow.id, 60)} - GlideMQ`;
    const old = before.current;
    if (old && old.state !== flow.state) announce(`The flow is now ${wordOf(flow.state)}.`);
    else if (old && old.failed < flow.failed) announce(`${plural(flow.failed, "node")} failed.`);
    before.current = { state: flow.state, failed: flow.failed };
  }, [flow?.state, flow?.name, flow?.failed]);
  useLive(id, isLive, (change) => {
    const isOther = change?.flow?.total !== undefined && change.flow.total !== flow.total;
    if (isOther && Date.now() - loaded.current > 3000) {
      loaded.current = Date.now();
      source.reload();
    } else if (change) source.change((data) => merge(data, change));
  }, source.reload);
  useRestart(id, flow, source.reload);
  return { ...source, isLive };
}

/** Calls `reload` when a flow that has ended is another one than shown: somebody else has run it again. */
function useRestart(id, flow, reload) {
  const head = useData(flow && isOver(flow) ? ["flows", id, "head"] : null, {}, 5000).data?.flow;
  useEffect(() => {
    if (head && flow && isOver(flow) && MARKS.some((mark) => head[mark] !== flow[mark])) reload();
  }, [head]);
}

/** Calls `then` when a number is another one than before. */
function useChange(value, then) {
  const before = useRef(undefined);
  useEffect(() => {
    if (before.current !== undefined && before.current !== value) then();
    before.current = value;
  }, [value]);
}

export function Flow({ id }) {
  const source = useFlow(id);
  const { data, isLive } = source;
  const failures = useData(data?.flow?.failed > 0 ? ["flows", id, "failures"] : null, {}, isLive && data.flow.total <= MANY ? 5000 : 30000);
  useChange(data?.flow?.failed, failures.reload);
  const head = useData(data ? null : ["flows", id, "head"], {}, 60000);
  if (!data?.flow && !source.error && head.data?.flow) {
    return <><Head flow={head.data.flow} groups={null} id={id} after={source.reload} />{source.reading ? <Loading reading={source.reading} /> : <p class="quiet">Loading the graph…</p>}</>;
  }
  const seen = useRef(null);
  if (data?.flow) seen.current = data.flow;
  if (!data?.flow && source.error?.status === 404) {
    return <Gone id={id} error={source.error} seen={seen.current} record={head.data?.flow} />;
  }
  if (!data?.flow) {
    return <Pending source={source} title="Flow"><p><a href={link(["flows"])}>All flows</a></p></Pending>;
  }
  const groups = list(data.groups);
  const path = list(data.path);
  const { view: asked, group } = route.value.params;
  const view = VIEWS.some(([key]) => key === asked) ? asked : "graph";
  const after = (action) => {
    // The service may answer from what it read a second ago.
    if (action !== "cancel") source.change((old) => ({ ...old, flow: { ...old.flow, state: "running", finished_at: null } }));
    setTimeout(source.reload, 1200);
  };
  const retryGroup = (group) => <RetryGroup id={id} group={group} after={after} />;
  const open = (index) => {
    const one = groups[index];
    if (one.count > 1) setParams({ group: one.key, state: "", search: "", offset: "" });
    else go(["flows", id, "nodes", one.key]);
  };
  return (
    <>
      <Head flow={data.flow} groups={groups} id={id} after={after} />
      <Problem error={source.error} />
      <Wrong id={id} flow={data.flow} groups={groups} failures={failures} more={retryGroup} />
      <nav class="tabs" aria-label="Views of this flow">
        {VIEWS.map(([key, word]) => (
          <a key={key} href={flowLink(id, { view: key })} aria-current={view === key ? "page" : undefined}>
            {word}{key === "errors" && data.flow.failed > 0 && ` (${number(list(failures.data?.groups).length || data.flow.failed)})`}
          </a>
        ))}
      </nav>
      {view === "graph" && (
        <>
          <div class="beside">
            {groups.length > 0 && (
              <Graph groups={groups} path={path} selected={group ? groups.findIndex((one) => one.key === group) : -1} onOpen={open} />
            )}
            <Groups id={id} groups={groups} path={path} selected={group} onOpen={open} />
          </div>
          {data.is_exact === false && <p class="quiet">Times, the critical path and elements of arrays that have ended are not shown for a flow of this size.</p>}
          {group && <Opened id={id} group={groups.find((one) => one.key === group)} name={group} version={isLive} />}
        </>
      )}
      {view === "timeline" && <Times id={id} isLive={isLive} total={data.flow.total} />}
      {view === "nodes" && <><h2>Nodes</h2><Nodes id={id} version={isLive} /></>}
      {view === "errors" && <Errors id={id} source={failures} flow={data.flow} more={retryGroup} />}
    </>
  );
}

/** A flow that does not exist, or no longer; `record` is what is left of one whose jobs were removed, `seen` what was. */
function Gone({ id, error, seen, record }) {
  const known = record ?? seen;
  const name = str(known?.name) || id;
  useEffect(() => {
    document.title = `${record ? "Expired" : known ? "Gone" : "No such flow"}: ${cut(name, 60)} - GlideMQ`;
  }, [name, Boolean(record), Boolean(known)]);
  return (
    <>
      <header class="head">
        <p class="crumbs"><a href={link(["flows"])}>Flows</a></p>
        <h1>{record ? <><State state={record.state} /> {name}</> : known ? `${name} is no longer there` : "There is no such flow"}</h1>
        <p class="quiet">
          <code>{id}</code> <Copy text={id} />
          {known && <>{", created "}<Time at={known.created_at} /></>}{known?.finished_at && <>{", ended "}<Time at={known.finished_at} /></>}
        </p>
        {known && <Labels labels={known.labels} href={(label) => link(["flows"], { label })} />}
        {record && <><p>{plural(record.total, "node")}</p><Bar isWordy states={countsOf(record)} /></>}
        {record?.reason && <p class="reason">{cut(record.reason, 800)}</p>}
      </header>
      <section class="wrong" aria-labelledby="gone">
        <h2 id="gone">What happened</h2>
        {record && <p>Its nodes, results and logs were removed when its retention ended. Only this outcome is left of it.</p>}
        {!record && known && <p>It was {wordOf(known.state)} when this page last saw it. Since then somebody has deleted it, or its retention has ended.</p>}
        {!known && <p>Perhaps the link is not complete, the flow is on another server, or it was deleted or its retention has ended.</p>}
        <p class="quiet">The service says: {error.message} {error.fix}</p>
      </section>
      <Again />
      <p><a href={link(["flows"])}>All flows</a></p>
    </>
  );
}

function Head({ flow, groups, id, after }) {
  return (
    <header class="head">
      <p class="crumbs"><a href={link(["flows"])}>Flows</a></p>
      <h1><State state={flow.state} /> {str(flow.name) || str(flow.id)}</h1>
      <p class="quiet">
        <code>{str(flow.id)}</code> <Copy text={str(flow.id)} />
        {" in "}<a href={queueLink(str(flow.queue))}>{str(flow.queue)}</a>
        {flow.generation > 0 && `, generation ${flow.generation}`}
        {", created "}<Time at={flow.created_at} />{flow.finished_at ? ", ended " : ""}{flow.finished_at && <Time at={flow.finished_at} />}
        {isOver(flow) ? ", lasted " : ", running for "}<Lasted from={flow.created_at} to={flow.finished_at} />
      </p>
      <Labels labels={flow.labels} href={(label) => link(["flows"], { label })} />
      {flow.note && <p>{cut(flow.note, 1000)}</p>}
      <p>{plural(flow.total, "node")}</p>
      <Bar isWordy states={groups ? total(groups) : countsOf(flow)} href={(state) => flowLink(id, { view: "nodes", state })} />
      <p class="buttons">
        {["failed", "cancelled"].includes(flow.state) && <Change id={id} action="retry" title="Retry failed nodes" after={after} />}
        <Change id={id} action="restart" title="Restart the flow" after={after} />
        {!isOver(flow) && <Change id={id} action="cancel" title="Cancel the flow" after={after} isDanger />}
      </p>
    </header>
  );
}

function Change({ id, action, title, after, isDanger }) {
  const plan = async () => {
    const { text, nodes } = await get(["flows", id, "plan"], { action });
    return str(text) || `This concerns ${plural(nodes, "node")}.`;
  };
  const run = async (reason) => {
    const answer = await post(["flows", id, action], { reason });
    after(action);
    return answer;
  };
  const done = (answer) => (action === "cancel" ? "The flow was cancelled." : `${title}: the flow is ${wordOf(answer?.state)}.`);
  return (
    <Action isDanger={isDanger} action={{ title, confirm: title, plan, run, done, isDanger, hasReason: action === "cancel" }} />
  );
}

/** Runs the nodes of one group of failures again, and leaves the others as they are. */
function RetryGroup({ id, group, after }) {
  const plan = async () => {
    const { text, nodes } = await get(["flows", id, "group-plan"], { group: group.group });
    return { text: str(text), isNothing: nodes === 0 };
  };
  const run = async () => {
    const answer = await post(["flows", id, "retry-group"], { group: group.group });
    after("retry-group");
    return answer;
  };
  const done = ({ changed }) => `Retry this group: ${plural(list(changed).length, "failed node")}.`;
  return <Action isSmall action={{ title: `Retry the group ${cut(group.group, 60)}`, confirm: "Retry this group", plan, run, done }} />;
}

/** What is wrong and why, in a few lines. */
function Wrong({ id, flow, groups, failures, more }) {
  const states = total(groups);
  const isIdle = flow.state === "running" && groups.length > 0 && !states.active;
  const held = useData(flow.state === "running" ? ["flows", id, "waits"] : null, {}, 10000).data;
  const waits = list(held?.waits).filter((one) => isIdle || !one.is_turn);
  const isUnserved = waits.some(({ reason }) => str(reason).includes("no live worker"));
  const causes = list(failures.data?.groups);
  const isAlone = flow.state === "running" && flow.supervised === false && !isUnserved;
  if (!flow.reason && !causes.length && !isIdle && !isAlone && !waits.length) return null;
  const isBad = flow.state === "failed" || causes.length > 0 || isUnserved;
  const isWaiting = isIdle || isAlone || waits.length > 0;
  return (
    <section class={isBad ? "wrong bad" : "wrong"} aria-labelledby="wrong">
      <h2 id="wrong">{flow.state === "failed" ? "Why it failed" : flow.state === "cancelled" ? "Why it ended" : isBad ? "What is wrong" : isWaiting ? "What it waits for" : "Reason"}</h2>
      {isAlone && <p>No live Python worker or supervisor serves the home of this flow, <a href={queueLink(str(flow.queue))}>queue {str(flow.queue)}</a>. Start a worker of one of its queues; if only Node workers serve it, glidemq supervise.</p>}
      {isIdle && <p>No node runs now.</p>}
      {flow.reason && !causes.some((one) => str(flow.reason).endsWith(str(one.reason))) && <p class="reason">{cut(flow.reason, 800)}</p>}
      <Failures groups={causes} limit={3} href={(name) => nodeLink(id, name)} more={more} rest={flowLink(id, { view: "nodes", state: "failed" })} />
      <Held id={id} waits={waits} looked={held?.looked} of={held?.of} />
      {causes.length > 3 && <p><a href={flowLink(id, { view: "errors" })}>All {number(causes.length)} causes</a></p>}
    </section>
  );
}

/** What holds nodes back, by reason, with some of them. */
function Held({ id, waits, looked, of }) {
  if (!waits.length) return null;
  return (
    <>
      <ul class="waits" aria-label="What nodes wait for">
        {waits.map((one) => (
          <li key={one.reason}>
            {plural(one.count, "node")} {one.count === 1 ? "waits" : "wait"}: <Why wait={one} />
            {!one.until && <>{" ("}<a href={queueLink(str(one.queue))}>queue {str(one.queue)}</a>)</>}.{" "}
            <span class="examples">
              {list(one.nodes).map((name) => <a key={name} href={nodeLink(id, name)}>{cut(name, 60)}</a>)}
              {one.count > list(one.nodes).length && <span class="quiet">and {number(one.count - list(one.nodes).length)} more</span>}
            </span>
          </li>
        ))}
      </ul>
      {of > looked && <p class="quiet">Of {plural(of, "node")} that wait, the first {number(looked)} were looked at.</p>}
    </>
  );
}

function Opened({ id, group, name, version }) {
  const element = useRef();
  useEffect(() => element.current.focus({ preventScroll: false }), [name]);
  return (
    <section class="opened">
      <h2 tabIndex="-1" ref={element}>{str(group?.label ?? name)}{group && `: ${plural(group.count, "node")}`}</h2>
      {group && <Bar states={group.states} isWordy />}
      <p><button type="button" onClick={() => setParams({ group: "", state: "", search: "", offset: "" })}>Close this list</button></p>
      <Nodes key={name} id={id} group={name} version={version} />
    </section>
  );
}

function Times({ id, isLive, total }) {
  const source = useData(["flows", id, "timeline"], { limit: 200 }, isLive && total <= MANY ? 5000 : 60000);
  const bars = list(source.data?.bars).length;
  return (
    <section>
      <h2>Timeline</h2>
      <Problem error={source.error} />
      {source.data ? <Timeline data={source.data} href={(bar) => nodeLink(id, str(bar.label ?? bar.group))} /> : !source.error && <Loading reading={source.reading} />}
      {source.data?.total > bars && (
        <p class="quiet">{number(bars)} of {number(source.data.total)} nodes that have started: those of the critical path, then those that took longest.</p>
      )}
    </section>
  );
}

function Errors({ id, source, flow, more }) {
  const found = list(source.data?.groups);
  return (
    <section>
      <h2>Errors by cause</h2>
      <Problem error={source.error} />
      {found.length > 0 && <Failures groups={found} href={(name) => nodeLink(id, name)} more={more} rest={flowLink(id, { view: "nodes", state: "failed" })} />}
      {!found.length && !source.error && (flow.failed > 0 && !source.data ? <Loading reading={source.reading} /> : <p class="quiet">No node has failed by itself.</p>)}
      {flow.failed > 0 && <p><a href={flowLink(id, { view: "nodes", state: "failed" })}>All {number(flow.failed)} failed nodes</a></p>}
    </section>
  );
}
