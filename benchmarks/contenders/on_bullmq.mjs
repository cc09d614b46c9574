// BullMQ: the same commands as talk.py, in JavaScript.
import { existsSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

// The package is in a folder that the harness passes in, not next to this file.
const { FlowProducer, Queue, QueueEvents, Worker } = createRequire(join(process.env.BENCH_MODULES, "x.js"))("bullmq");

const [role, url, concurrency] = process.argv.slice(2);
const { hostname, port } = new URL(url);
const connection = { host: hostname, port: Number(port), maxRetriesPerRequest: null };
const QUEUE = "bench";
const DATA = { to: "someone@example.com", lines: [1, 2, 3] };
const RESULT = { ok: true };
const WIDTH = 50;
const AT_ONCE = 1000;
const LOOK_MS = 5;

const seconds = async (call) => {
  const begun = performance.now();
  await call();
  return (performance.now() - begun) / 1000;
};

function producer() {
  const queue = new Queue(QUEUE, { connection });
  const flows = new FlowProducer({ connection });
  const events = new QueueEvents(QUEUE, { connection });
  let flow = null;
  const left = async () => {
    const counts = await queue.getJobCounts("waiting", "active", "waiting-children", "delayed", "prioritized");
    return Object.values(counts).reduce((sum, count) => sum + count, 0);
  };
  const node = (name, children) => ({ name, queueName: QUEUE, data: DATA, ...(children ? { children } : {}) });
  const chain = (size) => {
    let last;
    for (let at = 0; at < size; at++) last = node("noop", last && [last]);
    return last;
  };
  const trees = {
    "fan-in": (size) => node("join", Array.from({ length: size - 1 }, () => node("noop"))),
    chain,
    columns: (size) => node("join", Array.from({ length: WIDTH }, () => chain(Math.floor((size - 1) / WIDTH)))),
  };
  const open = ({ folder }) => writeFileSync(join(folder, "open"), "");
  return {
    ready: () => events.waitUntilReady(),
    add_one_by_one: ({ count }) =>
      seconds(async () => {
        for (let at = 0; at < count; at++) await queue.add("noop", DATA);
      }),
    add_in_bulk: ({ count }) =>
      seconds(async () => {
        for (let first = 0; first < count; first += AT_ONCE) {
          const length = Math.min(AT_ONCE, count - first);
          await queue.addBulk(Array.from({ length }, () => ({ name: "noop", data: DATA })));
        }
      }),
    add_gates: async ({ count, folder }) => {
      await queue.addBulk(Array.from({ length: count }, () => ({ name: "gate", data: folder })));
      return null;
    },
    left,
    drain: (args) =>
      seconds(async () => {
        open(args);
        while (await left()) await sleep(LOOK_MS);
      }),
    run_one: async ({ count }) => {
      const took = [];
      for (let at = 0; at < count; at++)
        took.push(await seconds(async () => (await queue.add("noop", DATA)).waitUntilFinished(events)));
      return took;
    },
    submit: async ({ shape, size }) => {
      const tree = trees[shape];
      return tree ? seconds(async () => (flow = (await flows.add(tree(size))).job)) : null;
    },
    wait: (args) =>
      seconds(async () => {
        open(args);
        await flow.waitUntilFinished(events);
      }),
  };
}

async function serve() {
  const calls = producer();
  await calls.ready();
  console.log(JSON.stringify("ready"));
  for await (const line of createInterface({ input: process.stdin })) {
    const { do: name, ...args } = JSON.parse(line);
    console.log(JSON.stringify(await calls[name](args)));
  }
  process.exit(0);
}

async function handle(job) {
  if (job.name === "join") return Object.keys(await job.getChildrenValues()).length;
  if (job.name === "gate") {
    writeFileSync(join(job.data, `held-${job.id}`), "");
    while (!existsSync(join(job.data, "open"))) await sleep(LOOK_MS);
  }
  return RESULT;
}

if (role === "producer") await serve();
else {
  const worker = new Worker(QUEUE, handle, { connection, concurrency: Number(concurrency) });
  process.on("SIGTERM", async () => {
    await worker.close(true);
    process.exit(0);
  });
}
