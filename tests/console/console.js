// What all scripts use: the stage, the API, and pages that are watched for errors and for requests to other origins.

const assert = require("node:assert/strict");
const readline = require("node:readline");
const axe = require("axe-core");
const { chromium } = require("playwright-core");

const BASE = process.env.PUNCTUAL;
const TOKENS = Object.fromEntries(["ops", "day-shift", "reader", "clerk", "shop", "producer"].map((name) => [name, `${name}-0123456789abcdef`]));
/** Longest wait for something to show, in ms: the page calls every 2 s, on a busy machine. */
const SHOWN = 20_000;

const answers = readline.createInterface({ input: process.stdin });
/** Asks the stage, see tests/it/console/stage.rs. */
const stage = (wish) => new Promise((resolve) => {
  answers.once("line", resolve);
  process.stdout.write(`stage ${wish}\n`);
});

/** A call of the API with all rights, beside the page. */
async function api(method, path, body, name = "ops") {
  const response = await fetch(`${BASE}/v1/${path}`, {
    method,
    headers: { authorization: `Bearer ${TOKENS[name]}` },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await response.text();
  return { status: response.status, text, json: text ? JSON.parse(text) : null };
}

/** One message or an array; it must be accepted. */
async function schedule(route, messages) {
  const { status, text } = await api("POST", `routes/${route}/messages`, messages);
  assert.ok(status === 200 || status === 201, text);
}

/** Messages that expire while the route is paused. */
async function expired(route, messages) {
  await api("POST", `routes/${route}/pause`);
  const at = Date.now() + 1000;
  await schedule(route, [messages].flat().map((message) => ({ ...message, expires_at: at })));
  await eventually("expired", () => Date.now() > at + 5);
  await api("POST", `routes/${route}/resume`);
}

/** Until `look` gives something, or the time is over. */
async function eventually(what, look, maxWait = SHOWN) {
  const end = Date.now() + maxWait;
  for (;;) {
    const found = await look();
    if (found) return found;
    assert.ok(Date.now() < end, `not within ${maxWait} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

let browser;
const watched = [];

/**
 * A page of its own context. `statuses`: replies that the script provokes; the browser writes a line about each to the
 * console, which no page can prevent. Any other error, warning or request to another origin fails the script at `end`.
 */
async function open({ base = `${BASE}/console/`, width = 1280, height = 860, scheme = "light", statuses = [], ...context } = {}) {
  browser ??= await chromium.launch({ executablePath: process.env.BROWSER, args: ["--no-sandbox"] });
  const page = await (await browser.newContext({ viewport: { width, height }, colorScheme: scheme, ...context })).newPage();
  page.setDefaultTimeout(SHOWN);
  const wrong = [];
  watched.push(wrong);
  page.on("console", (message) => {
    const status = message.text().match(/^Failed to load resource: the server responded with a status of (\d+)/)?.[1];
    const isLost = /^Failed to load resource: net::ERR_(CONNECTION_REFUSED|EMPTY_RESPONSE|CONNECTION_RESET|INCOMPLETE_CHUNKED_ENCODING)/.test(message.text());
    const isProvoked = status ? statuses.includes(Number(status)) : isLost && statuses.includes(0);
    if (["error", "warning"].includes(message.type()) && !isProvoked) wrong.push(`${message.type()}: ${message.text()}`);
  });
  page.on("pageerror", (error) => wrong.push(`exception: ${error.stack}`));
  page.on("request", (request) => {
    const { protocol, origin } = new URL(request.url());
    if (protocol !== "blob:" && origin !== new URL(base).origin) wrong.push(`request to ${request.url()}`);
  });
  await page.goto(base);
  return page;
}

async function signIn(page, name = "ops") {
  await page.getByLabel("Token").fill(TOKENS[name]);
  await page.getByRole("button", { name: "Sign in" }).click();
}

/** A page that is signed in, with its first overview. */
async function opened(name = "ops", options = {}) {
  const page = await open(options);
  await signIn(page, name);
  await page.getByRole("heading", { name: "Routes" }).waitFor();
  return page;
}

const view = (page, address) => page.evaluate((hash) => { location.hash = hash; }, address);

const shows = (page, text, options = {}) => page.locator("body").getByText(text, options).first().waitFor();

/**
 * Begins to record the tasks of the page; the function that it gives ends that, and gives the longest one: CPU time and
 * elapsed time, in ms. On a busy machine the latter is that of others, too. `total`: CPU time of all
 * of them.
 */
async function tasks(page) {
  const session = await page.context().newCDPSession(page);
  const events = [];
  session.on("Tracing.dataCollected", ({ value }) => events.push(...value));
  await session.send("Tracing.start", { transferMode: "ReportEvents", categories: "disabled-by-default-devtools.timeline,__metadata" });
  const begun = performance.now();
  return async () => {
    const duration = performance.now() - begun;
    const complete = new Promise((resolve) => session.once("Tracing.tracingComplete", resolve));
    await session.send("Tracing.end");
    await complete;
    const threads = events.filter(({ name, args }) => name === "thread_name" && args.name === "CrRendererMain");
    const isPage = ({ pid, tid }) => threads.some((thread) => thread.pid === pid && thread.tid === tid);
    const all = events.filter((event) => event.name === "RunTask" && event.tdur !== undefined && isPage(event));
    const times = all.map(({ ts }) => ts / 1000);
    assert.ok(Math.max(...times) - Math.min(...times) > 0.8 * duration, "all the while tasks were recorded");
    const longest = (name) => Math.round(Math.max(...all.map((event) => event[name])) / 1000);
    const total = all.reduce((sum, { tdur }) => sum + tdur, 0) / 1000;
    return { cpu: longest("tdur"), elapsed: longest("dur"), total, share: total / duration };
  };
}

/** Nothing that axe-core finds, and no sideways scrolling. */
async function sound(page, name) {
  // The page's policy lets no script in but its own: the debugger may.
  await page.evaluate(`${axe.source}; undefined`);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  const texts = violations.map(({ id, nodes }) => `${name}: ${id}: ${nodes.map((node) => `${node.html} ${node.failureSummary}`).join("; ")}`);
  assert.deepEqual(texts, []);
  await fits(page, name);
}

async function fits(page, name) {
  const beyond = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(beyond <= 0, `${name} is ${beyond} px too wide`);
}

/** The dialog that is open. */
const dialog = (page) => page.getByRole("dialog");

function run(script) {
  script().then(async () => {
    await browser?.close();
    assert.deepEqual(watched.flat(), []);
    process.exit(0);
  }).catch(async (error) => {
    console.log(error.stack);
    console.log(watched.flat().join("\n"));
    for (const context of browser?.contexts() ?? []) {
      for (const page of context.pages()) console.log(page.url(), (await page.locator("body").innerText().catch(String)).slice(0, 3000));
    }
    process.exit(1);
  });
}

module.exports = { BASE, TOKENS, api, assert, dialog, eventually, expired, fits, open, opened, run, schedule, shows, signIn, sound, stage, tasks, view };
