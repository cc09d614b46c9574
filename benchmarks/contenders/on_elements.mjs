// BullMQ: the same as on_elements.py, in JavaScript. One Worker in a process of its own runs the jobs.
import { fork } from "node:child_process";
import { createRequire } from "node:module";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { setTimeout as sleep } from "node:timers/promises";

// The package is in a folder that the harness passes in, not next to this file.
const { Queue, QueueEvents, Worker } = createRequire(join(process.env.BENCH_MODULES, "x.js"))("bullmq");

const [size, url, role] = process.argv.slice(2);
const { hostname, port } = new URL(url);
const connection = { host: hostname, port: Number(port), maxRetriesPerRequest: null };
const QUEUE = "bench";
const AT_ONCE = 1000;
const WAIT_MS = 20;

async function measure(count) {
  const queue = new Queue(QUEUE, { connection });
  const events = new QueueEvents(QUEUE, { connection });
  await events.waitUntilReady();
  await (await queue.add("double", 1)).waitUntilFinished(events);
  const begun = performance.now();
  for (let first = 0; first < count; first += AT_ONCE) {
    const length = Math.min(AT_ONCE, count - first);
    await queue.addBulk(Array.from({ length }, (_, at) => ({ name: "double", data: first + at })));
  }
  const submitted = performance.now();
  while ((await queue.getJobCounts("completed")).completed < count + 1) await sleep(WAIT_MS);
  const ended = performance.now();
  return { submit_s: (submitted - begun) / 1000, run_s: (ended - submitted) / 1000 };
}

if (role === "worker") new Worker(QUEUE, async (job) => 2 * job.data, { connection, concurrency: 8 });
else {
  const worker = fork(fileURLToPath(import.meta.url), [size, url, "worker"]);
  console.log(JSON.stringify(await measure(Number(size))));
  worker.kill("SIGKILL");
  process.exit(0);
}
