// Asks for what the view shows first, while the script of the page is still loading.
import { OPTIONS, url, viewOf } from "./address.js";

const { parts } = viewOf(location.hash);
const wanted = [["about"]];
if (["flows", "queues"].includes(parts[0]) && parts.length === 2) wanted.push(parts);
if (parts[0] === "flows" && parts.length === 2) wanted.push([...parts, "head"]);
globalThis.glidemqEarly = new Map(wanted.map((one) => [url(one), fetch(url(one), OPTIONS)]));
for (const answer of globalThis.glidemqEarly.values()) answer.catch(() => {}); // whoever takes it sees the error
