// Numbers, texts and payloads. Everything from the service is shown as text.
import { useState } from "preact/hooks";

const format = new Intl.NumberFormat("en");
export const number = (value) => (Number.isFinite(Number(value)) && value !== null ? format.format(Number(value)) : "-");
export const list = (value) => (Array.isArray(value) ? value.filter((one) => one !== null && one !== undefined) : []);
export const str = (value) =>
  typeof value === "string" ? value : value === null || value === undefined ? "" : JSON.stringify(value);
export const cut = (value, size) => {
  const text = str(value);
  return text.length > size ? `${text.slice(0, size - 1)}…` : text;
};
export const plural = (count, one, many = `${one}s`) => `${number(count)} ${Number(count) === 1 ? one : many}`;

export function bytes(value) {
  const size = Number(value);
  if (value === null || !Number.isFinite(size)) return "-";
  if (size < 1024) return `${size} B`;
  const power = Math.min(4, Math.floor(Math.log2(size) / 10));
  return `${(size / 1024 ** power).toFixed(power > 1 ? 1 : 0)} ${["", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

/** A short text: cut in the table, whole on hover. */
export const Short = ({ text, size = 120 }) => <span title={str(text)}>{cut(text, size)}</span>;

/** Text of a payload: what was sent of it, how large it is, and the link to the whole. */
export function Payload({ title, text, whole }) {
  if (text === null || text === undefined) return null;
  const { text: body, size, is_cut: isCut, masked } = typeof text === "object" ? text : { text };
  return (
    <section class="payload">
      <h3>{title}</h3>
      <pre tabIndex="0" aria-label={title}>{str(body) || "(empty)"}</pre>
      <p class="quiet">
        {size !== undefined && <span>{bytes(size)}. </span>}
        {isCut && <span>Only the beginning is shown. </span>}
        {masked > 0 && <span>{plural(masked, "value")} that may be secret {masked === 1 ? "is" : "are"} masked. </span>}
        {whole && isCut && <a href={whole} target="_blank" rel="noopener">Show the whole {title.toLowerCase()}</a>}
      </p>
    </section>
  );
}

export function Copy({ text }) {
  const [isDone, setDone] = useState(false);
  if (!navigator.clipboard) return null;
  const copy = () => navigator.clipboard.writeText(text).then(() => setDone(true), () => {});
  return (
    <button type="button" class="small" onClick={copy} aria-label={`Copy ${text}`}>
      {isDone ? "Copied" : "Copy"}
    </button>
  );
}

/** The value if it is a link to a web page, otherwise null. */
export const webLink = (value) => (/^https?:\/\//i.test(str(value)) ? value : null);

export function Labels({ labels, href }) {
  return (
    <ul class="labels" aria-label="Labels">
      {Object.entries(labels ?? {}).map(([key, value]) => (
        <li key={key}>
          <a href={href(`${key}=${str(value)}`)} title={`Flows with ${key}=${str(value)}`}><bdi>{cut(key, 40)}</bdi>=<bdi>{cut(value, 60)}</bdi></a>
        </li>
      ))}
    </ul>
  );
}
