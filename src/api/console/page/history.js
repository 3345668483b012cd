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

/** Counters that a double cannot hold are BigInt. */
const minus = (a = 0, b = 0) => (typeof a === "number" && typeof b === "number" ? a - b : Number(BigInt(a) - BigInt(b)));
const plus = (a, b) => (typeof a === "number" && typeof b === "number" && a + b <= Number.MAX_SAFE_INTEGER ? a + b : BigInt(a) + BigInt(b));

export function remember({ instance, activity }, at = performance.now() / 1000) {
  const key = instanceKey(instance);
  let samples = instances.get(key) ?? [];
  if (samples.length && latest !== key) alternated = at;
  latest = key;
  // A restart resets the counters.
  if (samples.length && samples.at(-1).uptime > instance.uptime_seconds) samples = [];
  samples.push({ at, uptime: instance.uptime_seconds, routes: activity.routes, all: sum(Object.values(activity.routes)) });
  while (samples[0].at < at - KEPT) samples.shift();
  instances.set(key, samples);
  for (const [other, theirs] of instances) {
    if (theirs.at(-1).at < at - KEPT) instances.delete(other);
  }
}

const NOTHING = { delivered: 0, failed: 0, lateness: [] };

/**
 * Work of a route, or of all routes with null: deliveries and failures per second, `points()` of a curve of both, and counts
 * of the lateness histogram over `seconds`. At first `seconds` is null, and the counts are those since the instance's start.
 */
export function work(instance, route) {
  const samples = instances.get(instanceKey(instance)) ?? [];
  const of = (sample) => (route === null ? sample.all : sample.routes[route] ?? NOTHING);
  const last = samples.at(-1);
  if (!last) return { points: () => [], late: [], seconds: 0 };
  const isNew = last.at - samples[0].at < RATE_OVER / 2;
  const before = samples.findLast((sample) => sample.at <= last.at - RATE_OVER) ?? samples[0];
  const elapsed = last.at - before.at;
  const perSecond = (name) => (elapsed ? minus(of(last)[name], of(before)[name]) / elapsed : undefined);
  const first = of(samples[0]).lateness;
  return {
    delivered: perSecond("delivered"),
    failed: perSecond("failed"),
    points: () => curve(samples.map((sample) => ({ at: sample.at, ...of(sample) }))),
    late: of(last).lateness.map((all, n) => minus(all, isNew ? 0 : first[n])),
    seconds: isNew ? null : last.at - samples[0].at,
  };
}

function sum(all) {
  const total = { delivered: 0, failed: 0, lateness: [] };
  for (const { delivered, failed, lateness } of all) {
    total.delivered = plus(total.delivered, delivered);
    total.failed = plus(total.failed, failed);
    lateness.forEach((count, n) => { total.lateness[n] = plus(total.lateness[n] ?? 0, count); });
  }
  return total;
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
