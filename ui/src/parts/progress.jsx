// What a handler has reported: a percentage, or an object such as that of a Spark step.
import { cut, number, str, webLink } from "./text.jsx";

const PAIRS = [["stages_done", "stages", "Spark stages"], ["tasks_done", "tasks", "Spark tasks"]];
const OWN = ["ui", "spark_ui", ...PAIRS.flat()];

/** The page of Spark for this node, or null. */
export const sparkLink = (node) =>
  webLink(node.spark_url) ?? webLink(node.progress?.spark_ui) ?? webLink(node.progress?.ui);

/** Pairs of a word and what to show, for a list of facts. */
export function progressFacts(progress) {
  if (progress === null || progress === undefined) return [];
  if (typeof progress === "number") {
    return [["Progress", <><progress value={progress} max="100" aria-label="Progress" /> {number(progress)} %</>]];
  }
  if (typeof progress !== "object" || Array.isArray(progress)) return [["Progress", cut(progress, 300)]];
  const pairs = PAIRS.filter(([, all]) => progress[all] > 0).map(([done, all, word]) => [
    word,
    <><progress value={progress[done]} max={progress[all]} aria-label={word} /> {number(progress[done])} of {number(progress[all])}</>,
  ]);
  const others = Object.entries(progress).filter(([key]) => !OWN.includes(key));
  return [
    ...pairs,
    ...others.map(([key, value]) => [key.replaceAll("_", " "), typeof value === "number" ? number(value) : cut(value, 300) || str(value)]),
  ];
}
