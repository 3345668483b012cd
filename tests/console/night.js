// The operator's night with the page alone: the sink answers 500, then 422, then nothing, then is down, then recovers. The
// operator sees each on the page, and acts there. All messages arrive or are purged, by the operator's decision alone.

const { api, assert, dialog, opened, run, schedule, shows, stage, view } = require("./console.js");

const ROUTE = "order-timeout";
const PART = 40;
let scheduled = 0;

const part = () => {
  const messages = Array.from({ length: PART }, (_, n) => ({ id: `m${scheduled + n}`, payload: scheduled + n }));
  scheduled += PART;
  return schedule(ROUTE, messages);
};

/** Within a minute the overview names it, and the sinks say why. */
async function isDown(page, error) {
  await view(page, "#/");
  await page.getByText("Sink shop: down.").or(page.getByText("Sink shop: recovering.")).first().waitFor({ timeout: 60_000 });
  await view(page, "#/sinks");
  await page.getByRole("article", { name: "Sink shop" }).getByText(error).first().waitFor({ timeout: 60_000 });
}

async function isUp(page) {
  await view(page, "#/sinks");
  await page.getByRole("article", { name: "Sink shop" }).getByText("up", { exact: true }).waitFor({ timeout: 60_000 });
}

const number = (page, name) => page.getByRole("article", { name: `Route ${ROUTE}` }).getByRole("link", { name: new RegExp(`^[\\d,]+ ${name}$`) }).locator("b");
const reads = (page, name, count) => page.getByRole("article", { name: `Route ${ROUTE}` }).getByRole("link", { name: `${count} ${name}`, exact: true }).waitFor({ timeout: 60_000 });

const tile = (page, name) => page.getByRole("article", { name: `Route ${ROUTE}` }).getByRole("button", { name }).click();

run(async () => {
  const page = await opened();
  await stage("sink answers 500");
  await part();
  await isDown(page, "HTTP 500");
  // Why does a message wait?
  await view(page, `#/messages?route=${ROUTE}`);
  await page.locator("td.id a").first().click();
  await page.getByText(/It waits for sink shop, which is down|It waits for the next one|It is in flight/).first().waitFor();
  await view(page, "#/");
  await tile(page, "Pause");
  await dialog(page).getByLabel("Note").fill("the shop answers 500; asked its team");
  await dialog(page).getByRole("button", { name: "Pause", exact: true }).click();
  await shows(page, "Route order-timeout is paused.");
  await shows(page, "asked its team");

  // The team has deployed: now it refuses them.
  await stage("sink answers 422");
  await tile(page, "Resume");
  await dialog(page).getByRole("button", { name: "Resume", exact: true }).click();
  await reads(page, "dead", PART);
  await page.getByRole("link", { name: `Route ${ROUTE}: ${PART} dead letters.` }).click();
  await page.getByRole("link", { name: `${PART} rejected`, exact: true }).click();
  await shows(page, "HTTP 422");
  // One, to see whether it gets through: it does not.
  await page.getByLabel("Select all on this page").waitFor();
  await page.getByRole("checkbox", { name: /^Select m/ }).first().check();
  await page.getByRole("button", { name: "Redrive 1 selected" }).click();
  await dialog(page).getByText("1 dead letter", { exact: true }).waitFor();
  await dialog(page).getByRole("button", { name: "Redrive", exact: true }).click();
  await shows(page, "Redrove 1 dead letter");
  await page.getByRole("link", { name: `${PART} rejected`, exact: true }).waitFor();
  // They are tests of the shop's team, and are purged.
  await page.getByRole("button", { name: "Purge all that match" }).click();
  await dialog(page).getByText(`${PART} dead letters`).waitFor();
  await dialog(page).getByLabel("Type the route’s name").fill(ROUTE);
  await dialog(page).getByRole("button", { name: "Purge", exact: true }).click();
  await shows(page, `Purged ${PART} dead letters`);

  await stage("sink hangs");
  await part();
  await isDown(page, "no reply within 2s");

  await stage("sink refuses");
  await part();
  await isDown(page, "Connection refused");
  await view(page, "#/");
  assert.ok(Number(await number(page, "pending").innerText()) > 0, "they wait");
  await reads(page, "dead", 0);

  await stage("sink answers 200");
  await stage("sink listens");
  await isUp(page);
  await view(page, "#/");
  for (const name of ["pending", "retrying", "in flight", "dead"]) await reads(page, name, 0);
  const { json } = await api("GET", "overview");
  assert.equal(json.activity.routes[ROUTE].delivered, scheduled - PART, "all that were not purged arrived");
});
