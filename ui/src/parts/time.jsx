// Relative times with the exact time on hover, and durations.
import { signal } from "@preact/signals";
import { now } from "../api.js";

const tick = signal(0);
setInterval(() => document.hidden || (tick.value += 1), 1000);

const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
export const instant = (value) => {
  const at = typeof value === "string" ? Date.parse(value) : NaN;
  return Number.isFinite(at) ? at : null;
};

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(Number(seconds))) return "-";
  const all = Math.max(0, Number(seconds));
  if (all < 0.00001) return "0 s";
  if (all < 0.01) return `${Number((all * 1000).toFixed(all < 0.001 ? 2 : 1))} ms`;
  if (all < 1) return `${Math.round(all * 1000)} ms`;
  if (all < 10) return `${all.toFixed(1)} s`;
  const whole = Math.round(all);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

export const exactly = (at) => exact.format(at);

export function Time({ at, none = "-" }) {
  const time = instant(at);
  void tick.value;
  if (time === null) return <span>{none}</span>;
  const seconds = Math.round((now() - time) / 1000);
  const text =
    Math.abs(seconds) < 2 ? "now" : seconds > 0 ? `${short(seconds)} ago` : `in ${short(-seconds)}`;
  return <time dateTime={at} title={`${exactly(time)} (${at})`}>{text}</time>;
}

/** Why something waits, and until when. */
export function Why({ wait }) {
  const until = instant(wait.until);
  return <>{until !== null && <>until {exactly(until)} (<Time at={wait.until} />): </>}{String(wait.reason ?? "")}</>;
}

function short(seconds) {
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} days`;
}

/** The time from one moment to another, or until now. */
export function Lasted({ from, to }) {
  const start = instant(from);
  const end = instant(to);
  if (start === null) return <span>-</span>;
  if (end === null) void tick.value;
  return <span>{duration(((end ?? now()) - start) / 1000)}</span>;
}
