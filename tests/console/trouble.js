// Wrong tokens and tokens that stop being valid; Redis and punctual killed and restarted while the page is open; a proxy
// that adds a prefix.

const http = require("node:http");
const { assert, BASE, dialog, eventually, open, opened, run, schedule, shows, signIn, stage, TOKENS, view } = require("./console.js");

const pending = (page, count) => page.getByRole("article", { name: "Route invoices" }).getByRole("link", { name: `${count} pending` });

async function tokens() {
  const page = await open({ statuses: [401, 403] });
  await page.getByLabel("Token").fill("wrong-0123456789");
  await page.getByRole("button", { name: "Sign in" }).click();
  await shows(page, "The token is not valid, or not any more.");
  await signIn(page, "producer");
  await shows(page, "Refused: the token lacks the right `read`.");
  assert.equal(await page.getByRole("button", { name: "Sign out" }).count(), 0, "it is refused");
  assert.equal(await page.evaluate(() => sessionStorage.length), 0);
  await signIn(page, "shop");
  await pending(page, 3).waitFor();
  assert.equal(await page.getByRole("article", { name: "Route stock" }).count(), 0, "a route of others");
  await view(page, "#/messages?route=stock");
  await shows(page, "the token is for other routes");
  assert.equal(await page.evaluate(() => localStorage.length), 0);
  await page.reload();
  await shows(page, "the token is for other routes");
  await page.getByRole("button", { name: "Sign out" }).click();
  assert.equal(await page.evaluate(() => sessionStorage.length), 0);
  await page.context().close();
}

async function redis(page) {
  await pending(page, 3).waitFor();
  await stage("redis kill");
  await shows(page, "Redis is down.");
  await page.getByText(/numbers of the routes are \d+ s old/).waitFor();
  assert.equal(await pending(page, 3).count(), 1, "the last numbers stay");
  await view(page, "#/messages?route=invoices");
  await shows(page, "503 unavailable");
  await stage("redis restart");
  await page.getByText("Redis is down.").waitFor({ state: "detached" });
  await page.getByRole("link", { name: "held-1", exact: true }).waitFor();
  await schedule("invoices", { id: "held-3", delay: "1h", payload: 1 });
  await view(page, "#/");
  await pending(page, 4).waitFor();
}

async function punctual(page) {
  await stage("punctual kill");
  await shows(page, "No reply.");
  await stage("punctual restart");
  await page.getByText("No reply.").waitFor({ state: "detached" });
  await pending(page, 4).waitFor();
}

/** The token stops being valid: it is asked for, and the page goes on where it was. */
async function rotated(page) {
  await view(page, "#/messages/invoices/held-1");
  await shows(page, "It waits for its time");
  await stage("token rotate");
  await shows(page, "The token is not valid, or not any more.");
  await signIn(page, "day-shift");
  await shows(page, "It waits for its time");
}

/** A proxy that serves each of `targets` in its turn, below `prefix` alone; it runs until the script ends. */
async function proxied(prefix, targets) {
  let turn = 0;
  const proxy = http.createServer((request, response) => {
    const { method, headers, url } = request;
    if (!url.startsWith(prefix)) {
      response.writeHead(404).end();
      return;
    }
    turn += 1;
    const { hostname, port } = new URL(targets[turn % targets.length]);
    request.pipe(http.request({ hostname, port, method, headers, path: `/${url.slice(prefix.length)}` }, (reply) => {
      response.writeHead(reply.statusCode, reply.headers);
      reply.pipe(response);
    }));
  });
  await new Promise((resolve) => proxy.listen(0, "127.0.0.1", resolve));
  return `http://127.0.0.1:${proxy.address().port}${prefix}`;
}

async function prefix() {
  const base = await proxied("/ops/", [BASE]);
  const page = await open({ base });
  await signIn(page, "day-shift");
  await pending(page, 4).waitFor();
  assert.equal(page.url(), `${base}console/`);
  await pending(page, 4).click();
  await page.getByRole("link", { name: "held-1", exact: true }).click();
  await shows(page, "It waits for its time");
  await page.goto(`${base}console`);
  await pending(page, 4).waitFor();
  assert.equal(await page.getByText("This address leads to").count(), 0, "one instance");
  await page.context().close();
}

async function severalInstances() {
  const second = await stage("punctual second");
  const page = await open({ base: `${await proxied("/", [BASE, second])}console/` });
  await signIn(page, "day-shift");
  await shows(page, "This address leads to 2 instances");
  const shown = async () => (await page.locator("footer").innerText()).match(/process (\d+)/)[1];
  const first = await shown();
  await eventually("the other instance", async () => await shown() !== first);
  // The charts are the sum of both.
  const hours = page.getByRole("region", { name: "Last 24 hours" });
  await eventually("both are added up", async () => (await hours.innerText()).match(/process \d+/g)?.length === 2);
  await page.context().close();
}

/** Without tokens the page asks for none, and all actions are there. */
async function withoutTokens() {
  const page = await open({ base: `${await stage("punctual second without tokens")}/` });
  const tile = page.getByRole("article", { name: "Route invoices" });
  await tile.getByRole("button", { name: "Pause" }).click();
  await dialog(page).getByRole("button", { name: "Pause", exact: true }).click();
  await shows(page, "Route invoices is paused.");
  assert.equal(await page.getByRole("button", { name: "Sign out" }).count(), 0);
  await page.context().close();
}

run(async () => {
  await schedule("invoices", [0, 1, 2].map((n) => ({ id: `held-${n}`, delay: "1h", payload: n })));
  await tokens();
  const page = await opened("ops", { statuses: [0, 401, 503] });
  await redis(page);
  await punctual(page);
  await rotated(page);
  await prefix();
  await severalInstances();
  await withoutTokens();
  const refused = await fetch(`${BASE}/v1/overview`, { headers: { authorization: `Bearer ${TOKENS.ops}` } });
  assert.equal(refused.status, 401, "the old token is not valid any more");
});
