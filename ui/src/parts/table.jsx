// Tables that scroll sideways on narrow screens, filters, pages of a list, and what went wrong.
import { Component } from "preact";
import { useEffect, useState } from "preact/hooks";
import { number, plural } from "./text.jsx";

/** columns: [heading, cell(row), class]. */
export function Table({ label, columns, rows, keyOf, none = "Nothing here.", isLoading = false }) {
  if (!rows.length) return <p class="quiet">{isLoading ? "Loading…" : none}</p>;
  return (
    <div class="table" tabIndex="0" role="region" aria-label={label} aria-busy={isLoading}>
      <table>
        <thead>
          <tr>{columns.map(([head, , kind]) => <th key={head} scope="col" class={kind}>{head}</th>)}</tr>
        </thead>
        <tbody>
          {rows.map((row, index) => (
            <tr key={keyOf ? keyOf(row) : index}>
              {columns.map(([head, cell, kind]) => <td key={head} class={kind} data-head={head}>{cell(row)}</td>)}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** A search field that waits until typing pauses; `/` moves the focus to it. */
export function Search({ label, value = "", onChange, hint = "", isMain = true }) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  useEffect(() => {
    if (text === value) return undefined;
    const timer = setTimeout(() => onChange(text.trim()), 300);
    return () => clearTimeout(timer);
  }, [text]);
  return (
    <label class="search">
      {label}
      <input type="search" value={text} placeholder={hint} data-search={isMain ? "" : undefined}
        onInput={(event) => setText(event.target.value)} />
    </label>
  );
}

export function Choice({ label, value = "", options, onChange }) {
  return (
    <label>
      {label}
      <select value={value} onChange={(event) => onChange(event.target.value)}>
        {options.map(([key, word]) => <option key={key} value={key} selected={key === value}>{word}</option>)}
      </select>
    </label>
  );
}

export function Pages({ total, offset, limit, onMove, noun }) {
  if (total <= limit && offset === 0) return <p class="quiet">{plural(total, noun)}</p>;
  const last = Math.min(offset + limit, total);
  return (
    <nav class="pages" aria-label={`Pages of ${noun}s`}>
      <button type="button" disabled={offset === 0} onClick={() => onMove(Math.max(0, offset - limit))}>Previous</button>
      <span>{Math.min(offset + 1, total).toLocaleString("en")} to {last.toLocaleString("en")} of {plural(total, noun)}</span>
      <button type="button" disabled={last >= total} onClick={() => onMove(offset + limit)}>Next</button>
    </nav>
  );
}

export function Problem({ error, children }) {
  if (!error) return null;
  return (
    <div class="problem" role="alert">
      <strong>{error.message}</strong> {error.fix}
      {children}
    </div>
  );
}

export const Again = () => <p class="quiet">This page looks again every 10 s, and shows it as soon as it is there.</p>;

/** It takes a while: how far reading is, where that is counted. */
export function Loading({ reading }) {
  if (!reading) return <p class="quiet">Loading…</p>;
  if (!reading.done || !reading.of) return <p class="quiet">Still reading{reading.of > 0 && ` ${plural(reading.of, "node")}`}…</p>;
  return (
    <p class="quiet">
      <progress value={reading.done} max={reading.of} aria-label="Read so far" /> Read {number(reading.done)} of {plural(reading.of, "node")}.
    </p>
  );
}

/** What a page shows until it has data: loading, or what went wrong. */
export function Pending({ source, title, children }) {
  if (source.error) {
    return (
      <>
        <h1>{title}</h1>
        <Problem error={source.error}>{children}</Problem>
        {source.error.status === 404 && <Again />}
      </>
    );
  }
  return <><h1>{title}</h1><Loading reading={source.reading} /></>;
}

/** A page that cannot show what it received says so; the rest goes on. */
export class Guard extends Component {
  componentDidCatch(error) {
    console.error(error);
    this.setState({ error });
  }

  render({ children }, { error }) {
    if (!error) return children;
    return (
      <>
        <h1>This view cannot show what it received</h1>
        <p class="problem" role="alert">{String(error.message ?? error)}</p>
        <p><button type="button" onClick={() => this.setState({ error: null })}>Try again</button></p>
      </>
    );
  }
}
