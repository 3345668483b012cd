// Every view with every state of messages, sinks and sources: sound for axe-core, in light and dark, wide and at 360 px,
// and usable by keyboard. PUNCTUAL_SCREENSHOTS names a directory for pictures of them.

const path = require("node:path");
const { api, assert, eventually, expired, fits, open, opened, run, schedule, shows, signIn, sound, stage, view } = require("./console.js");

const SHOTS = process.env.PUNCTUAL_SCREENSHOTS;
/** Set by `tests/run.sh --full`: both schemes, wide and narrow. */
const FULL = process.env.PUNCTUAL_TEST_FULL === "1";
/** Seconds of deliveries before a picture. */
const FILLED = 70;

const VIEWS = {
  overview: "#/",
  table: "#/?as=table",
  route: "#/?route=order-timeout",
  find: "#/find?id=twin",
  ahead: "#/ahead?within=hour",
  messages: "#/messages?route=invoices",
  flows: "#/messages?route=hooks&state=flows",
  message: "#/messages/invoices/invoice-1042",
  waits: "#/messages/hooks/hook-89",
  dead: "#/dead?route=order-timeout",
  schedules: "#/schedules?name=rotate",
  sinks: "#/sinks",
};

async function fill() {
  await stage("sink answers 422");
  await schedule("order-timeout", Array.from({ length: 24 }, (_, n) => ({ id: `order-${1000 + 7 * n}`, payload: { order: n } })));
  await eventually("dead letters", async () => (await api("GET", "routes/order-timeout")).json.dead === 24);
  await stage("sink answers 200");
  await expired("order-timeout", Array.from({ length: 5 }, (_, n) => ({ id: `basket-${n}`, payload: 0 })));
  // A wave over the next hour, and some later.
  const later = (n) => Math.round(60_000 * (1 + 58 * ((n % 97) / 97) ** (1 + (n % 3))));
  await schedule("invoices", Array.from({ length: 700 }, (_, n) => ({ id: `invoice-${n}`, delay: later(n), payload: { invoice: n } })));
  await schedule("invoices", Array.from({ length: 60 }, (_, n) => ({ id: `yearly-${n}`, delay: `${n + 2}h`, payload: n })));
  await schedule("order-timeout", Array.from({ length: 300 }, (_, n) => ({ id: `cart-${n}`, delay: later(n * 5), payload: n })));
  await schedule("invoices", {
    id: "invoice-1042", delay: "30m", key: "acme", headers: { "X-Tenant": "acme", "X-Trace": "4bf92f3577b34da6" },
    payload: { invoice: 1042, total: "129.00", currency: "EUR", lines: [{ sku: "a-1", count: 2 }, { sku: "b-7", count: 1 }] },
  });
  await schedule("stock", Array.from({ length: 12 }, (_, n) => ({ id: `stock-${n}`, payload: n })));
  await eventually("its sink is down", async () => (await api("GET", "sinks")).json.sinks.find(({ name }) => name === "warehouse").breaker === "open");
  await api("POST", "routes/stock/pause", { note: "the warehouse is being repaired until 22:00" });
  await schedule("hooks", Array.from({ length: 90 }, (_, n) => ({ id: `hook-${n}`, flow: `tenant:${n % 30}`, payload: n })));
  await api("POST", "routes/hooks/flows/tenant:7/pause", { note: "the tenant moves" });
  await api("PUT", "schedules/rotate", { route: "invoices", every: "1s", payload: "rotate" });
  await api("PUT", "schedules/report", {
    route: "invoices", cron: "30 6 * * 1-5", time_zone: "America/Argentina/Buenos_Aires", payload: { kind: "daily" }, missed: { all: 10 },
  });
  await eventually("20 runs", async () => (await api("GET", "schedules/rotate")).json.runs.length === 20);
  await api("POST", "schedules/rotate/pause");
  await schedule("order-timeout", [{ id: "sparse", delay: "20d", payload: 1 }, { id: "twin", delay: "40d", payload: 1 }]);
  await schedule("invoices", { id: "twin", delay: "40d", payload: 2 });
}

/** Deliveries, for the curves of the pictures. */
async function deliver(seconds) {
  for (let n = 0; n < seconds; n += 1) {
    const count = Math.round(14 + 10 * Math.sin(n / 6) + 4 * Math.sin(n / 2));
    const some = (name) => Array.from({ length: count }, (_, m) => ({ id: `${name}-${n}-${m}`, delay: 500 + 40 * m, payload: m }));
    await Promise.all([schedule("order-timeout", some("o")), schedule("invoices", some("i").slice(count / 3))]);
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

const READY = {
  waits: (page) => page.getByText("It is due, and waits for its").waitFor(),
  table: (page) => page.getByRole("table", { name: "Routes" }).getByRole("row", { name: /stock/ }).waitFor(),
  route: (page) => page.getByRole("region", { name: "Last 24 hours" }).getByText("Delivered").first().waitFor(),
  find: (page) => page.getByRole("list", { name: "Found" }).getByRole("listitem").nth(1).waitFor(),
  overview: (page) => page.getByRole("article", { name: "Route stock" }).getByText("the warehouse is being repaired").waitFor(),
  ahead: (page) => page.getByRole("link", { name: /^[1-9]\d* messages?, / }).first().waitFor(),
  messages: (page) => page.locator("table.list tbody tr").nth(99).waitFor(),
  flows: (page) => page.getByRole("listitem").filter({ hasText: "tenant:29" }).getByText("rate 1/d").waitFor(),
  message: (page) => page.getByText("\"currency\": \"EUR\"").waitFor(),
  dead: (page) => page.getByRole("link", { name: "24 rejected", exact: true }).waitFor(),
  schedules: (page) => page.getByRole("table", { name: "Last runs" }).getByRole("row").nth(20).waitFor(),
  sinks: (page) => page.getByRole("article", { name: "Sink warehouse" }).getByText("Connection refused").first().waitFor(),
};

async function look(page, scheme, width, withAxe) {
  for (const [name, address] of Object.entries(VIEWS)) {
    await view(page, address);
    await READY[name](page);
    await fits(page, `${name} ${width}`);
    if (withAxe) await sound(page, `${name} ${scheme} ${width}`);
    if (!SHOTS) continue;
    await page.mouse.move(0, 0);
    await page.screenshot({ path: path.join(SHOTS, `console-${name}-${scheme}-${width > 500 ? "wide" : "narrow"}.png`) });
  }
}

async function numbers(page) {
  await view(page, "#/");
  const tile = page.getByRole("article", { name: "Route order-timeout" });
  for (const [name, count] of [["pending", "302"], ["dead", "29"], ["in flight", "0"]]) {
    await tile.getByRole("link", { name: `${count} ${name}` }).waitFor();
  }
  await schedule("order-timeout", Array.from({ length: 200 }, (_, n) => ({ id: `soon-${n}`, delay: 20 * n, payload: n })));
  // 200 messages in 4 s.
  await eventually("deliveries per second", async () => parseFloat((await tile.locator(".rates b").first().innerText())) >= 5);
  await eventually("lateness", async () => /[\d.]+ m?s \/ [\d.]+ m?s/.test(await tile.locator(".lines").innerText()));
  await shows(page, "Sink warehouse: down.");
  await shows(page, "Route stock is paused.");
  await shows(page, "Route order-timeout: 29 dead letters.");
  const shown = await page.locator("footer").innerText();
  const { host, process } = (await api("GET", "overview")).json.instance;
  assert.match(shown, new RegExp(`${host}, process ${process}`));

  // Times are in the viewer's zone, with UTC on hover.
  await view(page, "#/messages/invoices/invoice-1042");
  const due = (await api("GET", "routes/invoices/messages/invoice-1042")).json.due;
  const time = page.locator(".facts time").first();
  assert.equal(await time.getAttribute("title"), `${due.replace("T", " ").replace("Z", "")} UTC`);
  const there = new Date(due).toLocaleTimeString("en-GB", { timeZone: "Asia/Tokyo" });
  assert.ok((await time.innerText()).endsWith(there), `${await time.innerText()} is ${there}`);
}

/** From a bar to its messages; every horizon; every state; no action by mouse. */
async function keyboard(page) {
  await view(page, "#/");
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to the content");
  for (let n = 0; n < 3; n += 1) await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Ahead");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Ahead" }).waitFor();
  for (const [horizon, least] of [["minute", 0], ["day", 60], ["week", 700], ["hour", 600]]) {
    const choice = page.getByRole("link", { name: new RegExp(`^${horizon}$`, "i") });
    await choice.focus();
    await page.keyboard.press("Enter");
    const total = page.getByRole("region", { name: "Route invoices" }).locator("header b");
    await page.getByText(`within the ${horizon}`).first().waitFor();
    assert.ok(Number((await total.innerText()).replace(",", "")) >= least, `${horizon}: ${await total.innerText()}`);
  }
  await page.getByRole("region", { name: "Route invoices" }).getByRole("link", { name: /message/ }).first().focus();
  for (const key of ["End", "Home", "ArrowRight", "ArrowRight", "ArrowLeft"]) await page.keyboard.press(key);
  const label = await page.evaluate(() => document.activeElement.getAttribute("aria-label"));
  const [, count] = label.match(/^(\d+) messages?, /);
  await page.keyboard.press("Enter");
  await page.getByText(/^Due from/).waitFor();
  const rows = page.locator("table.list tbody tr");
  await eventually("the messages of the bar", async () => await rows.count() === Number(count));

  // The address alone leads to the same list.
  const address = page.url();
  await page.reload();
  await page.getByText(/^Due from/).waitFor();
  assert.equal(page.url(), address);
  for (const [state, text] of [["Retrying 0", "There is none."], ["In flight", "There is none."], ["Dead 0", "has no dead letters"]]) {
    await page.getByRole("navigation", { name: "State" }).getByRole("link", { name: state }).press("Enter");
    await shows(page, text);
    if (state.startsWith("Dead")) await page.goBack();
  }
  await page.getByLabel("Open an id").fill("invoice-1042");
  await page.keyboard.press("Enter");
  await shows(page, "It waits for its time");

  // An id is found on any route.
  await page.getByLabel("Find an id").fill("twin");
  await page.keyboard.press("Enter");
  await page.getByRole("list", { name: "Found" }).getByRole("link", { name: "order-timeout" }).press("Enter");
  await shows(page, "It waits for its time");
  await page.getByLabel("Find an id").fill("invoice-1042");
  await page.keyboard.press("Enter");
  await eventually("the only one", () => page.url().endsWith("#/messages/invoices/invoice-1042"));
  await page.getByText(/^by ops$/).or(page.getByText("by ops")).first().waitFor();

  // A dialog takes the focus, and gives it back.
  const move = page.getByRole("button", { name: "Move" });
  await move.focus();
  await page.keyboard.press("Enter");
  await page.getByRole("dialog").waitFor();
  assert.equal(await page.evaluate(() => document.activeElement.closest("dialog") !== null), true);
  await sound(page, "dialog");
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "detached" });
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Move");
}

/** Retried messages, and those in flight. */
async function underWay(page) {
  await stage("sink answers 500");
  await schedule("order-timeout", { id: "again", payload: 1 });
  await view(page, "#/messages?route=order-timeout&state=retrying");
  await page.getByRole("link", { name: "again", exact: true }).waitFor();
  await view(page, "#/messages/order-timeout/again");
  await page.getByText(/Attempt \d+ failed\. It waits for the next one/).waitFor();
  await stage("sink hangs");
  await view(page, "#/messages?route=order-timeout&state=unack");
  await page.getByRole("link", { name: "again", exact: true }).waitFor();
  await stage("sink answers 200");
  await shows(page, "There is none.");
}

/** Nothing is called while the page is hidden, and at once when it is visible. */
async function hidden(page) {
  const calls = [];
  page.on("request", (request) => calls.push(request.url()));
  const hide = (isHidden) => page.evaluate((value) => {
    Object.defineProperty(document, "hidden", { configurable: true, get: () => value });
    document.dispatchEvent(new Event("visibilitychange"));
  }, isHidden);
  await view(page, "#/");
  await eventually("a call", () => calls.length > 0);
  await hide(true);
  await new Promise((resolve) => setTimeout(resolve, 500));
  calls.length = 0;
  await new Promise((resolve) => setTimeout(resolve, 5000));
  assert.deepEqual(calls, []);
  await hide(false);
  await eventually("a call", () => calls.length > 0);
}

run(async () => {
  await fill();
  const page = await open({ timezoneId: "Asia/Tokyo" });
  await sound(page, "sign in");
  await signIn(page);
  await page.getByRole("heading", { name: "Routes" }).waitFor();
  await READY.overview(page);
  await numbers(page);
  await keyboard(page);
  await underWay(page);
  await hidden(page);
  await page.context().close();
  const looks = [["light", 1280, true], ["dark", 360, true]];
  if (FULL || SHOTS) looks.push(["dark", 1280, false], ["light", 390, false]);
  const pages = await Promise.all(looks.map(([scheme, width]) => opened("ops", { scheme, width, height: width > 500 ? 860 : 760 })));
  if (SHOTS) await deliver(FILLED);
  for (const [n, [scheme, width, withAxe]] of looks.entries()) await look(pages[n], scheme, width, withAxe);
});
