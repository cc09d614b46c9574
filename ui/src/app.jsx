// The shell: navigation, banner, the page of the link, the dialog.
import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { about, done, isAway, loadAbout, needsToken, news, post } from "./api.js";
import { link, route } from "./route.js";
import { choice } from "./theme.js";
import { Flow } from "./pages/flow.jsx";
import { Flows } from "./pages/flows.jsx";
import { Job } from "./pages/job.jsx";
import { Node } from "./pages/node.jsx";
import { Queue } from "./pages/queue.jsx";
import { Queues } from "./pages/queues.jsx";
import { Schedule } from "./pages/schedule.jsx";
import { Schedules } from "./pages/schedules.jsx";
import { Workers } from "./pages/workers.jsx";
import { Dialog } from "./parts/dialog.jsx";
import { Guard } from "./parts/table.jsx";
import { str } from "./parts/text.jsx";
import "./app.css";

const SECTIONS = [["flows", "Flows"], ["queues", "Queues"], ["workers", "Workers"], ["schedules", "Schedules"]];

/** [component, title] of the view that the link means. */
function view([section, one, kind, name]) {
  if (section === "queues" && kind === "jobs" && name) return [<Job key={`${one} ${name}`} queue={one} id={name} />, name];
  if (section === "flows" && !one) return [<Flows />, "Flows"];
  if (section === "flows" && kind === "nodes" && name) return [<Node key={`${one} ${name}`} id={one} name={name} />, name];
  if (section === "flows" && !kind) return [<Flow key={one} id={one} />, one];
  if (section === "queues" && !one) return [<Queues />, "Queues"];
  if (section === "queues" && !kind) return [<Queue key={one} name={one} />, one];
  if (section === "workers") return [<Workers />, "Workers"];
  if (section === "schedules" && one && kind) return [<Schedule key={`${one} ${kind}`} queue={one} name={kind} />, kind];
  if (section === "schedules") return [<Schedules />, "Schedules"];
  return [<Missing />, "No such page"];
}

function Missing() {
  return (
    <>
      <h1>There is no such page</h1>
      <p>The link may be incomplete. <a href={link(["flows"])}>All flows</a></p>
    </>
  );
}

function App() {
  const { parts } = route.value;
  const [page, title] = view(parts);
  const path = JSON.stringify(parts);
  const isFirst = useRef(true);
  useEffect(() => {
    document.title = `${title} - GlideMQ`;
    if (!isFirst.current) {
      scrollTo(0, 0);
      document.getElementById("main")?.focus({ preventScroll: true });
    }
    isFirst.current = false;
  }, [path]);
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>Skip to the content</a>
      <Top section={parts[0]} />
      <div role="status" aria-live="polite" class="banner-place">
        {isAway.value && <p class="banner">The queue server cannot be reached. This page goes on by itself.</p>}
        {done.value && <p class="banner told">{done.value}</p>}
      </div>
      <p class="hidden" role="status" aria-live="polite">{news.value}</p>
      <main id="main" tabIndex="-1">{needsToken.value ? <Token /> : <Guard key={path}>{page}</Guard>}</main>
      <Dialog />
      <footer>
        {about.value && `GlideMQ ${str(about.value.version)}, server ${str(about.value.server)}${about.value.prefix ? `, prefix ${str(about.value.prefix)}` : ""}. `}
        <a href="static/LICENSES.txt">Licences</a>
      </footer>
    </>
  );
}

function Top({ section }) {
  return (
    <header class="top">
      <span class="brand">GlideMQ</span>
      <nav aria-label="Pages">
        {SECTIONS.map(([key, word]) => (
          <a key={key} href={link([key])} aria-current={section === key ? "page" : undefined}>{word}</a>
        ))}
      </nav>
      {about.value?.read_only && <span class="quiet">read only</span>}
      <label class="theme">
        Colours
        <select value={choice.value} onChange={(event) => (choice.value = event.target.value)}>
          {["system", "light", "dark"].map((one) => <option key={one} value={one} selected={one === choice.value}>{one}</option>)}
        </select>
      </label>
    </header>
  );
}

function Token() {
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState("");
  const send = async (event) => {
    event.preventDefault();
    setProblem("");
    try {
      await post(["session"], { token });
      needsToken.value = false;
      loadAbout();
    } catch (error) {
      setProblem(error.status === 401 ? "This token is not valid." : error.message);
    }
  };
  return (
    <>
      <h1>Token needed</h1>
      <p>This console is protected by a token. It is the value of <code>--token</code> of <code>glidemq ui</code>.</p>
      <form class="filters" onSubmit={send}>
        <label>
          Token
          <input type="password" autoComplete="current-password" value={token} required onInput={(event) => setToken(event.target.value)} />
        </label>
        <button type="submit" class="main">Continue</button>
      </form>
      {problem && <p class="problem" role="alert">{problem}</p>}
    </>
  );
}

addEventListener("keydown", (event) => {
  const isTyping = event.target.closest?.("input, select, textarea, dialog");
  if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const fields = document.querySelectorAll("[data-search]");
  const field = fields[fields.length - 1];
  if (!field) return;
  event.preventDefault();
  field.focus();
});

loadAbout();
render(<App />, document.getElementById("app"));
