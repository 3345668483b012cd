// A hundred routes more than usual: a table, one call for what is ahead, and little of the main thread. Thousands of dead
// letters: page by page, without a stall, then all of them redriven.

const { api, assert, dialog, eventually, opened, run, schedule, shows, sound, stage, tasks, view } = require("./console.js");

const ROUTE = "order-timeout";
/** 10,000 with `tests/run.sh --full`. More than two lists of a thousand, from which the page counts kinds. */
const FULL = process.env.PUNCTUAL_TEST_FULL === "1";
const LETTERS = FULL ? 10_000 : 3000;
const ALL = (LETTERS + 1).toLocaleString("en-US");
const ARRAY = 1000;
/** Longest time in ms in which the page may not react. */
const STALL = 100;
/** Routes of the stage, and the share of the main thread that a page of them takes, at a call every 2 s. */
const ROUTES = 104;
const SHARE = 0.1;
const EVERY = 2000;
/** Calls for a measurement. */
const CALLS = FULL ? 4 : 2;

const table = (page) => page.getByRole("table", { name: "Routes" });
const rows = (page) => table(page).locator("tbody tr");
const first = (page) => rows(page).first().locator(".route");
const lines = (page) => page.getByRole("list", { name: "Routes" }).getByRole("listitem");

/** Two messages a second and forty later ones, on each of the hundred routes. */
async function busy() {
  const later = Array.from({ length: 40 }, (_, n) => ({ id: `later-${n}`, delay: 60_000 * (n + 1), payload: n }));
  const soon = Array.from({ length: 120 }, (_, n) => ({ id: `soon-${n}`, delay: 500 * n, payload: n }));
  for (let n = 0; n < 100; n += 1) await schedule(`queue-${String(n).padStart(2, "0")}`, [...later, ...soon]);
}

/** The part of the main thread that `address` takes: CPU time of a call, and of all that it draws, in `EVERY`. */
async function share(page, address, ready) {
  const calls = [];
  const record = (request) => calls.push(new URL(request.url()).pathname);
  await view(page, address);
  await ready();
  page.on("request", record);
  const ended = await tasks(page);
  const polls = () => calls.filter((path) => path === "/v1/overview").length;
  await eventually("calls", () => polls() > CALLS, 60_000);
  const { total, cpu } = await ended();
  page.off("request", record);
  const part = total / polls() / EVERY;
  console.log(`${ROUTES} routes, ${address}: ${(part * 100).toFixed(1)} % of the main thread, longest task ${cpu} ms, ${calls.length} calls in ${polls()} rounds`);
  assert.ok(part < SHARE, `${part} of the main thread`);
  return calls;
}

async function hundredRoutes() {
  await busy();
  const page = await opened();
  await eventually("all routes", async () => await rows(page).count() === ROUTES);
  console.log(`${(await api("GET", "overview")).text.length} bytes of an overview, ${(await api("GET", "charts")).text.length} of the charts`);
  // The sink of this one is down.
  await eventually("trouble first", async () => (await first(page).innerText()).startsWith("stock"));
  await share(page, "#/", () => rows(page).nth(ROUTES - 1).waitFor());
  const screens = await page.evaluate(() => document.documentElement.scrollHeight / innerHeight);
  assert.ok(screens < 7, `${screens} screens`);

  const calls = await share(page, "#/ahead?within=hour", () => lines(page).nth(99).waitFor());
  const forecasts = calls.filter((path) => path.includes("forecast"));
  assert.ok(forecasts.length > 0 && forecasts.every((path) => path === "/v1/forecast"), `${forecasts}`);
  assert.equal(await lines(page).filter({ hasText: "invoices" }).count(), 0, "nothing is ahead there");
  // From a bar of all routes to those of its interval, to the messages.
  await page.getByRole("region", { name: "All routes" }).getByRole("link", { name: /^\d\d+ messages, / }).nth(5).press("Enter");
  await shows(page, "choose one for its list");
  await lines(page).getByRole("link", { name: "queue-42" }).press("Enter");
  await page.getByText(/^Due from/).waitFor();

  // By keyboard: sorted by another column, then filtered.
  await view(page, "#/");
  await table(page).getByRole("link", { name: "Pending" }).press("Enter");
  await page.locator("th[aria-sort=descending]", { hasText: "Pending" }).waitFor();
  await eventually("sorted", async () => (await first(page).innerText()).startsWith("queue-"));
  await page.getByLabel("Route or sink contains").pressSequentially("queue-7", { delay: 20 });
  await eventually("filtered", async () => await rows(page).count() === 10);
  await table(page).getByRole("link", { name: "Route", exact: true }).press("Enter");
  await eventually("by name", async () => (await first(page).innerText()).startsWith("queue-70"));
  await page.getByRole("link", { name: "Cards" }).press("Enter");
  await page.getByRole("article").nth(9).waitFor();
  await page.getByRole("article", { name: "Route queue-77" }).getByRole("link", { name: "queue-77" }).press("Enter");
  await page.getByRole("region", { name: "Last 24 hours" }).getByText(/\d+, at most \d+ in 5 min/).waitFor();

  for (const [colorScheme, width] of [["light", 1280], ["dark", 390]]) {
    await page.emulateMedia({ colorScheme });
    await page.setViewportSize({ width, height: 860 });
    await view(page, "#/");
    await rows(page).nth(ROUTES - 1).waitFor();
    await table(page).locator("svg").first().waitFor();
    await sound(page, `table ${colorScheme} ${width}`);
    console.log(`${await page.evaluate(() => (document.documentElement.scrollHeight / innerHeight).toFixed(1))} screens of ${width} px`);
    await view(page, "#/ahead");
    await lines(page).nth(99).waitFor();
    await sound(page, `ahead ${colorScheme} ${width}`);
  }
  await page.context().close();
}

/** An error of today comes before those of another day, however many these are. */
async function kinds(page) {
  const items = page.locator(".kinds li");
  await page.getByText(`of the newest and the oldest 1,000 of ${ALL} dead letters`).waitFor();
  await eventually("both kinds", async () => await items.count() === 2);
  assert.match(await items.first().innerText(), /^\s*1,999\s+rejected: HTTP 422/);
  await page.route(/state=dead/, async (route) => {
    const response = await route.fetch();
    const json = await response.json();
    const messages = json.messages.map((one) => (one.last_error.includes("HTTP 409") ? one : { ...one, died_at: "2026-01-02T03:04:05.000Z" }));
    await route.fulfill({ response, json: { ...json, messages } });
  });
  await page.reload();
  await eventually("today's first", async () => /^\s*1\s+rejected: HTTP 409/.test(await items.first().innerText().catch(() => "")));
  await page.unroute(/state=dead/);
  await page.reload();
}

run(async () => {
  await hundredRoutes();
  await stage("sink answers 422");
  for (let from = 0; from < LETTERS; from += ARRAY) {
    await schedule(ROUTE, Array.from({ length: ARRAY }, (_, n) => ({ id: `m${from + n}`, payload: { n } })));
  }
  await eventually("all are dead", async () => (await api("GET", `routes/${ROUTE}`)).json.dead === LETTERS, 60_000);
  await stage("sink answers 409");
  await schedule(ROUTE, { id: "latest", payload: 1 });
  await eventually("one more", async () => (await api("GET", `routes/${ROUTE}`)).json.dead === LETTERS + 1);

  const page = await opened();
  await view(page, `#/dead?route=${ROUTE}`);
  await page.getByRole("link", { name: `${ALL} rejected`, exact: true }).waitFor();
  await kinds(page);
  await page.getByRole("link", { name: `${ALL} rejected`, exact: true }).waitFor();
  const ended = await tasks(page);
  const begun = Date.now();
  // In the page, as the clicks of playwright take longer than the pages.
  const seen = await page.evaluate(async () => {
    const ids = new Set();
    const first = () => document.querySelector("td.id")?.textContent;
    for (;;) {
      for (const cell of document.querySelectorAll("td.id")) ids.add(cell.textContent);
      const [next, shown] = [document.querySelector("a[rel=next]"), first()];
      if (!next) return ids.size;
      await new Promise((resolve) => {
        const observer = new MutationObserver(() => {
          if ([undefined, shown].includes(first())) return;
          observer.disconnect();
          resolve();
        });
        observer.observe(document.querySelector("main"), { childList: true, subtree: true, characterData: true });
        next.click();
      });
    }
  });
  const took = Date.now() - begun;
  const { cpu, elapsed } = await ended();
  console.log(`${seen} dead letters paged through in ${took} ms; longest task ${cpu} ms of CPU, ${elapsed} ms elapsed`);
  assert.equal(seen, LETTERS + 1);
  assert.ok(cpu <= STALL, `${cpu} ms`);

  await page.getByRole("link", { name: "Previous page" }).click();
  await page.getByRole("link", { name: "Next page" }).waitFor();
  await page.getByRole("link", { name: "First page" }).click();
  await stage("sink answers 200");
  await page.getByRole("button", { name: "Redrive all dead letters" }).click();
  await dialog(page).getByText(`${ALL} dead letters`).waitFor();
  await dialog(page).getByRole("button", { name: "Redrive" }).click();
  await shows(page, `Redrove ${ALL} dead letters`);
  await shows(page, "has no dead letters");
});
