// Bars of waiting and running over time, drawn as SVG with a link for each row.
import { useEffect, useRef, useState } from "preact/hooks";
import { now } from "../api.js";
import { duration, exactly, instant } from "./time.jsx";
import { Icon, colourOf, wordOf } from "./states.jsx";
import { cut, list, str } from "./text.jsx";

const ROW = 26;
const STEPS = [0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 604800];

function useWidth() {
  const element = useRef();
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => requestAnimationFrame(() => setWidth(Math.floor(entry.contentRect.width))));
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  return [element, width];
}

export function Timeline({ data, href }) {
  const [element, width] = useWidth();
  const bars = list(data?.bars).map((bar) => ({
    ...bar,
    ready: instant(bar.ready_at),
    start: instant(bar.started_at),
    end: instant(bar.finished_at),
  }));
  const known = bars.flatMap(({ ready, start, end }) => [ready, start, end]).filter((at) => at !== null);
  const from = instant(data?.start) ?? Math.min(...known, now());
  const to = Math.max(instant(data?.end) ?? now(), from + 10, ...known.filter((at) => at <= now() + 60000));
  return (
    <div class="timeline" ref={element}>
      {width > 0 && <Drawing {...{ bars, from, to, width, href }} />}
      <p class="quiet">
        Hatched: waiting for a worker. Solid: running. Framed: on the critical path. Each row leads to its node.
      </p>
    </div>
  );
}

function Drawing({ bars, from, to, width, href }) {
  const left = Math.min(240, Math.floor(width * 0.32));
  const x = (at) => left + ((Math.min(Math.max(at, from), to) - from) / (to - from)) * (width - left - 12);
  const seconds = (to - from) / 1000;
  const step = STEPS.find((one) => seconds / one <= (width - left) / 90) ?? seconds / 5;
  const marks = Array.from({ length: Math.min(40, Math.floor(seconds / step) + 1) }, (_, index) => index * step);
  const height = 24 + bars.length * ROW;
  return (
    <svg width={width} height={height} role="group" aria-label="Timeline">
      <defs>
        <pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
          <rect width="2" height="6" class="hatch" />
        </pattern>
      </defs>
      <g class="axis" aria-hidden="true">
        {marks.map((mark) => (
          <g key={mark}>
            <line x1={x(from + mark * 1000)} x2={x(from + mark * 1000)} y1="18" y2={height} />
            <text x={Math.min(x(from + mark * 1000), width - 24)} y="13">{mark === 0 ? "0" : duration(mark).replace(/\.0(?= s)| 0 (s|min|h)$/, "")}</text>
          </g>
        ))}
      </g>
      {bars.map((bar, index) => <Row key={`${bar.group} ${bar.label}`} {...{ bar, x, left, href }} y={24 + index * ROW} to={to} />)}
    </svg>
  );
}

function Row({ bar, x, y, left, to, href }) {
  const { ready, start, end, state, critical } = bar;
  const waitedUntil = start ?? end ?? (ready === null ? null : to);
  const ranUntil = start === null ? null : (end ?? to);
  const name = str(bar.label ?? bar.group);
  const words = [
    name,
    wordOf(state),
    ready !== null && waitedUntil !== null && `waited ${duration((waitedUntil - ready) / 1000)}`,
    start !== null && `ran ${duration((ranUntil - start) / 1000)} from ${exactly(start)}`,
    critical && "on the critical path",
  ].filter(Boolean).join(", ");
  return (
    <a href={href(bar)} aria-label={words}>
      <title>{words}</title>
      <rect x="0" y={y} width="100%" height={ROW} class="row" />
      <svg x="2" y={y + 6} width="14" height="14"><Icon state={state} /></svg>
      <text x="22" y={y + 17} class={critical ? "critical" : ""}>{cut(name, Math.floor((left - 22) / 7.2))}</text>
      {ready !== null && waitedUntil > ready && (
        <rect x={x(ready)} y={y + 6} width={Math.max(1, x(waitedUntil) - x(ready))} height={ROW - 12} class="waited" fill="url(#hatch)" />
      )}
      {start !== null && (
        <rect x={x(start)} y={y + 4} width={Math.max(3, x(ranUntil) - x(start))} height={ROW - 8} rx="2"
          class={`f-${colourOf(state)} ${critical ? "framed" : ""}`} />
      )}
    </a>
  );
}
