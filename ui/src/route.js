// The hash of the address is the view: #/flows/ID/nodes/NAME?state=failed.
import { signal } from "@preact/signals";
import { viewOf } from "./address.js";

const read = () => viewOf(location.hash);

export const route = signal(read());
addEventListener("hashchange", () => (route.value = read()));

/** The link to a view; filters that are empty are left out. */
export function link(parts, params = {}) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(params)) if (value) query.set(key, value);
  const text = query.toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

/** Change filters of this view in its link, without an entry in the history. */
export function setParams(changes) {
  const { parts, params } = route.peek();
  history.replaceState(null, "", link(parts, { ...params, ...changes }));
  route.value = read();
}

export const go = (parts, params) => (location.hash = link(parts, params));
export const flowLink = (id, params) => link(["flows", id], params);
export const nodeLink = (id, name) => link(["flows", id, "nodes", name]);
export const jobLink = (queue, id) => link(["queues", queue, "jobs", id]);
export const queueLink = (name, params) => link(["queues", name], params);
export const scheduleLink = (queue, name) => link(["schedules", queue, name]);
