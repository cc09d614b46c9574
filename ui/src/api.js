// Requests to the service, and what every page knows about it.
import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { OPTIONS, url } from "./address.js";

export { url } from "./address.js";
export const about = signal(null);
export const isAway = signal(false);
export const needsToken = signal(false);
export const news = signal(""); // read out by screen readers
export const done = signal(""); // what the last action did
const TOLD = 10000; // milliseconds
const SLOW = 18000; // milliseconds; a service that does not answer for longer is away
const AGAIN = 1000; // milliseconds, to what is still being read
let skew = 0; // of the clock here, in milliseconds

export const now = () => Date.now() + skew;
export const announce = (text) => (news.value = text);
let doneTimer;
export const tell = (text) => {
  done.value = text;
  clearTimeout(doneTimer);
  doneTimer = setTimeout(() => (done.value = ""), TOLD);
};
export const canChange = () => about.value !== null && about.value.read_only !== true;

export class ApiError extends Error {
  constructor(status, text, fix = "") {
    super(text);
    this.status = status;
    this.fix = fix;
    this.isAway = status === 0 || status === 502 || status === 503 || status === 504;
  }
}

/** The answer that was asked for before this script was loaded; once, as it grows old. */
function early(address) {
  const answer = globalThis.glidemqEarly?.get(address);
  globalThis.glidemqEarly?.delete(address);
  return answer;
}

async function request(address, options) {
  let answer;
  const slow = setTimeout(() => (isAway.value = true), SLOW);
  try {
    answer = await (early(address) ?? fetch(address, { ...OPTIONS, ...options }));
  } catch (error) {
    if (error.name === "AbortError") throw error;
    isAway.value = true;
    throw new ApiError(0, "The service cannot be reached.");
  } finally {
    clearTimeout(slow);
  }
  const body = await answer.json().catch(() => undefined);
  if (answer.ok && body !== undefined && body !== null) {
    if (!address.startsWith("api/about")) isAway.value = false;
    return body;
  }
  if (answer.ok) throw new ApiError(-1, "The service sent an answer that this page cannot read.");
  const error = new ApiError(
    answer.status,
    typeof body?.error === "string" ? body.error : `The service answered with status ${answer.status}.`,
    typeof body?.fix === "string" ? body.fix : "",
  );
  if (error.isAway) isAway.value = true;
  else if (!address.startsWith("api/about")) isAway.value = false;
  if (error.status === 401) needsToken.value = true;
  throw error;
}

/** The answer; while it is still being read, the service says how far, and it is asked again. */
export async function get(parts, params, signal, onReading) {
  for (;;) {
    const body = await request(url(parts, params), { signal });
    if (!body.reading) return body;
    onReading?.(body.reading);
    await new Promise((go) => setTimeout(go, AGAIN));
    signal?.throwIfAborted();
  }
}

export const post = (parts, body = {}) =>
  request(url(parts), {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-GlideMQ": "1" },
    body: JSON.stringify(body),
  });

export async function loadAbout() {
  try {
    const found = await get(["about"]);
    const at = Date.parse(found.now);
    if (Number.isFinite(at)) skew = at - Date.now();
    about.value = found;
  } catch {
    setTimeout(loadAbout, 3000);
  }
}

/** Load now, when the key changes, and every so often; on errors the last data stays. Without a key, nothing. */
export function useData(parts, params = {}, every = 5000) {
  const key = parts && url(parts, params);
  const [state, setState] = useState({ key: null, data: null, error: null });
  const again = useRef(() => {});
  const pace = useRef({});
  pace.current.every = every;
  useEffect(() => {
    if (!key) return undefined;
    let timer;
    let control;
    let isOver = false;
    let isRefused = false;
    let loaded = 0;
    const run = async () => {
      clearTimeout(timer);
      loaded = 0;
      control?.abort();
      const mine = (control = new AbortController());
      let wait = pace.current.every;
      try {
        const data = await get(parts, params, mine.signal, (reading) => !isOver && setState((old) => ({ ...old, reading })));
        if (!isOver) setState({ key, data, error: null });
      } catch (error) {
        if (isOver || mine.signal.aborted) return;
        if (!error.isAway) setState((old) => ({ key, data: error.status === 404 ? null : old.data, error }));
        wait = error.isAway ? 3000 : error.status === 404 ? 10000 : Math.max(wait, 10000);
        isRefused = error.status === 401;
      }
      loaded = Date.now();
      if (!isOver && !isRefused) timer = setTimeout(next, wait);
    };
    pace.current.change = () => {
      if (!loaded || isRefused) return; // the answer that is awaited sets the timer
      clearTimeout(timer);
      timer = setTimeout(next, Math.max(0, loaded + pace.current.every - Date.now()));
    };
    const next = () => (document.hidden ? (timer = setTimeout(next, 1000)) : run());
    again.current = run;
    run();
    const stop = needsToken.subscribe((needs) => {
      if (needs || !isRefused) return;
      isRefused = false;
      run();
    });
    return () => {
      isOver = true;
      again.current = () => {};
      stop();
      clearTimeout(timer);
      control?.abort();
    };
  }, [key]);
  useEffect(() => pace.current.change?.(), [every]);
  return {
    data: key ? state.data : null,
    error: key ? state.error : null,
    reading: state.reading,
    isLoading: state.key !== key,
    reload: () => again.current(),
    change: (edit) => setState((old) => (old.data ? { ...old, data: edit(old.data) } : old)),
  };
}

/**
 * Live changes of a flow. EventSource reconnects by itself, except after an error answer. `reload` is called at the
 * end and after a break: it finds out what has happened.
 */
export function useLive(id, isOn, onChange, reload) {
  const handlers = useRef();
  handlers.current = { onChange, reload };
  useEffect(() => {
    if (!isOn) return undefined;
    let source;
    let timer;
    const open = () => {
      source = new EventSource(url(["flows", id, "live"]));
      source.addEventListener("change", (event) => {
        isAway.value = false;
        let change = null;
        try {
          change = JSON.parse(event.data);
        } catch {
          return; // the next one may be readable
        }
        handlers.current.onChange(change);
      });
      source.addEventListener("away", () => (isAway.value = true));
      source.addEventListener("reload", () => handlers.current.reload()); // it has other nodes now
      source.addEventListener("ended", () => {
        source.close();
        handlers.current.reload();
      });
      source.onerror = () => {
        handlers.current.reload();
        if (source.readyState === EventSource.CLOSED) timer = setTimeout(open, 3000);
      };
    };
    open();
    return () => {
      clearTimeout(timer);
      source.close();
    };
  }, [id, isOn]);
}
