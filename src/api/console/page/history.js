// Rates and lateness, from the counters and histograms of successive overviews of one instance.

/** Time that samples are kept, in s: "the last minutes". */
const KEPT = 300;
/** Window of rates, in s. */
const RATE_OVER = 10;
/** Minimum time that a curve spans, in s. */
const SPAN = 60;

/** Samples by instance: one address may lead to several instances, and each has its own counters. */
const instances = new Map();

export const instanceKey = ({ host, process }) => `${host} ${process}`;

/** The latest instance that replied, and the latest time at which an instance replied after another one, in s. */
let latest, alternated = -Infinity;

/** The number of instances that reply in turn. */
export const seen = () => (alternated > performance.now() / 1000 - KEPT ? instances.size : 1);

const minus = (a, b) => Number(BigInt(a ?? 0) - BigInt(b ?? 0));

export function remember({ instance, activity }, at = performance.now() / 1000) {
  const key = instanceKey(instance);
  let samples = instances.get(key) ?? [];
  if (samples.length && latest !== key) alternated = at;
  latest = key;
  // A restart resets the counters.
  if (samples.length && samples.at(-1).uptime > instance.uptime_seconds) samples = [];
  samples.push({ at, uptime: instance.uptime_seconds, routes: activity.routes });
  while (samples[0].at < at - KEPT) samples.shift();
  instances.set(key, samples);
  for (const [other, theirs] of instances) {
    if (theirs.at(-1).at < at - KEPT) instances.delete(other);
  }
}

/**
 * Work of a route, or of all routes with null: deliveries and failures per second, a curve of both, and counts of the
 * lateness histogram over `seconds`. At first `seconds` is null, and the counts are those since the instance's start.
 */
export function work(instance, route) {
  const samples = instances.get(instanceKey(instance)) ?? [];
  const values = samples.map((sample) => ({ at: sample.at, ...sum(sample.routes, route) }));
  const last = values.at(-1);
  if (!last) return { points: [], late: [], seconds: 0 };
  const isNew = last.at - values[0].at < RATE_OVER / 2;
  const before = values.findLast((value) => value.at <= last.at - RATE_OVER) ?? values[0];
  const elapsed = last.at - before.at;
  return {
    delivered: elapsed ? minus(last.delivered, before.delivered) / elapsed : undefined,
    failed: elapsed ? minus(last.failed, before.failed) / elapsed : undefined,
    points: curve(values),
    late: last.lateness.map((all, n) => minus(all, isNew ? 0 : values[0].lateness[n])),
    seconds: isNew ? null : last.at - values[0].at,
  };
}

function sum(routes, route) {
  const all = route === null ? Object.values(routes) : [routes[route] ?? { delivered: 0, failed: 0, lateness: [] }];
  const total = (values) => values.reduce((a, b) => a + BigInt(b), 0n);
  const longest = Math.max(0, ...all.map(({ lateness }) => lateness.length));
  return {
    delivered: total(all.map((one) => one.delivered)),
    failed: total(all.map((one) => one.failed)),
    lateness: Array.from({ length: longest }, (_, n) => total(all.map(({ lateness }) => lateness[n] ?? 0))),
  };
}

/** Deliveries and failures per second between samples; `x` is 1 at the last one. */
function curve(values) {
  const end = values.at(-1).at;
  const span = Math.max(SPAN, end - values[0].at);
  return values.slice(1).map((to, n) => {
    const from = values[n];
    const seconds = to.at - from.at;
    return {
      x: 1 - (end - to.at) / span,
      delivered: minus(to.delivered, from.delivered) / seconds,
      failed: minus(to.failed, from.failed) / seconds,
    };
  });
}

/** The lateness in s that `share` of the deliveries do not exceed; `undefined` without any, Infinity beyond bounds. */
export function quantile(late, bounds, share) {
  const all = late.at(-1);
  if (!all) return undefined;
  const rank = all * share;
  const at = late.findIndex((number) => number >= rank);
  if (at >= bounds.length) return Infinity;
  const [from, below] = at ? [bounds[at - 1], late[at - 1]] : [0, 0];
  return from + ((bounds[at] - from) * (rank - below)) / (late[at] - below);
}
