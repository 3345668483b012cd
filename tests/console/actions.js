// Every action by the page alone, what it asks before, what it changes; and who does not see it.

const { api, assert, dialog, eventually, expired, opened, run, schedule, shows, stage, view } = require("./console.js");

const ROUTE = "order-timeout";
const message = async (id) => (await api("GET", `routes/${ROUTE}/messages/${id}`)).json;
const isGone = (id) => async () => (await api("GET", `routes/${ROUTE}/messages/${id}`)).status === 404;
const stats = async () => (await api("GET", `routes/${ROUTE}`)).json;
const dead = (count) => eventually(`${count} dead letters`, async () => (await stats()).dead === count);

async function confirm(page, verb, typed) {
  const button = dialog(page).getByRole("button", { name: verb, exact: true });
  if (typed) {
    await dialog(page).getByText("1 pending message").or(dialog(page).getByText(/dead letters?$/)).first().waitFor();
    assert.ok(await button.isDisabled(), "it waits for the route's name");
    await dialog(page).getByLabel("Type the route’s name").fill("order");
    assert.ok(await button.isDisabled(), "another name is not enough");
    await dialog(page).getByLabel("Type the route’s name").fill(typed);
  }
  await button.click();
}

async function one(page) {
  const waits = { delay: "1h", payload: { order: 1 } };
  await schedule(ROUTE, [{ id: "now", ...waits }, { id: "later", ...waits }, { id: "away", ...waits }]);
  await view(page, `#/messages?route=${ROUTE}`);
  await page.getByRole("link", { name: "now", exact: true }).click();
  await shows(page, "It waits for its time");
  await page.getByRole("button", { name: "Deliver now" }).click();
  await confirm(page, "Deliver now");
  await shows(page, "now is due now.");
  await eventually("delivered", isGone("now"));
  await shows(page, "It was delivered, cancelled or purged.");

  await view(page, `#/messages/${ROUTE}/later`);
  await page.getByRole("button", { name: "Move" }).click();
  await dialog(page).getByLabel("Delay from now").fill("soon");
  await confirm(page, "Move");
  await dialog(page).getByText("422 invalid").waitFor();
  await dialog(page).getByLabel("Delay from now").fill("2h");
  await confirm(page, "Move");
  await shows(page, "later is due");
  const ahead = Date.parse((await message("later")).due) - Date.now();
  assert.ok(Math.abs(ahead - 7_200_000) < 60_000, `${ahead}`);
  await page.getByRole("button", { name: "Move" }).click();
  await dialog(page).getByLabel("Or a time in your zone").fill("2031-05-04T03:02:01");
  await confirm(page, "Move");
  await eventually("moved", async () => (await message("later")).due === "2031-05-03T18:02:01.000Z");

  await view(page, `#/messages/${ROUTE}/away`);
  await page.getByRole("button", { name: "Cancel" }).click();
  await confirm(page, "Cancel the message", ROUTE);
  await shows(page, "away is cancelled.");
  assert.ok(await isGone("away")());
}

/** A conflict is shown as what it is, and changes nothing. */
async function conflict(page) {
  await stage("sink hangs");
  await schedule(ROUTE, { id: "flying", delay: "1h", payload: 1 });
  await view(page, `#/messages/${ROUTE}/flying`);
  await page.getByRole("button", { name: "Cancel" }).click();
  await dialog(page).getByText("1 pending message").waitFor();
  await dialog(page).getByLabel("Type the route’s name").fill(ROUTE);
  await api("POST", `routes/${ROUTE}/messages/flying/deliver`);
  await eventually("in flight", async () => (await message("flying")).state === "unack");
  await confirm(page, "Cancel the message");
  await dialog(page).getByText("409 in flight").waitFor();
  await page.keyboard.press("Escape");
  await stage("sink answers 200");
  await eventually("delivered", isGone("flying"));
}

async function pauses(page) {
  await view(page, "#/");
  const tile = page.getByRole("article", { name: `Route ${ROUTE}` });
  await tile.getByRole("button", { name: "Pause" }).click();
  await dialog(page).getByLabel("Note").fill("the shop is being <b>repaired</b>");
  await confirm(page, "Pause");
  await tile.getByText("the shop is being <b>repaired</b>").waitFor();
  const { paused, paused_by: by, note } = await stats();
  assert.deepEqual([paused, by, note], [true, "ops", "the shop is being <b>repaired</b>"]);
  await schedule(ROUTE, { id: "held", payload: 1 });
  await view(page, `#/messages/${ROUTE}/held`);
  await shows(page, "Its route is paused by ops");
  await view(page, "#/");
  await tile.getByRole("button", { name: "Resume" }).click();
  await confirm(page, "Resume");
  await tile.getByRole("button", { name: "Pause" }).waitFor();
  await eventually("delivered", isGone("held"));
}

/** Of each flow one message leaves, the others wait for the next day. */
async function flows(page) {
  const tenant = (flow, number) => Array.from({ length: number }, (_, n) => ({ id: `${flow}-${n}`, flow, payload: n }));
  await schedule("hooks", [...tenant("acme", 2), ...tenant("globex", 4)]);
  const state = async (flow) => (await api("GET", `routes/hooks/flows/${flow}`)).json;
  await eventually("they wait", async () => (await state("globex")).waiting === 3 && (await state("acme")).waiting === 1);
  await view(page, "#/");
  await page.getByRole("article", { name: "Route hooks" }).getByRole("link", { name: "4", exact: true }).click();
  await shows(page, "Waiting for their flow: 4 messages of 2 flows.");
  const items = page.getByRole("list", { name: "Flows" }).getByRole("listitem");
  await items.nth(1).waitFor();
  const [first, second] = await items.allInnerTexts();
  assert.match(first, /globex\s+rate\s+3 waiting, 0 in flight/);
  assert.match(first, /Next slot: .+ in \d+ h .+Limits: rate 1\/d, burst 1\./s);
  assert.match(second, /acme\s+rate\s+1 waiting/);

  await page.getByRole("button", { name: "Pause acme" }).click();
  await dialog(page).getByLabel("Note").fill("acme is being <b>repaired</b>");
  await confirm(page, "Pause");
  await items.nth(1).getByText("acme is being <b>repaired</b>").waitFor();
  const { paused, paused_by: by, note } = await state("acme");
  assert.deepEqual([paused, by, note], [true, "ops", "acme is being <b>repaired</b>"]);
  assert.equal((await state("globex")).paused, false);
  await page.getByRole("button", { name: "Resume acme" }).click();
  await confirm(page, "Resume");
  await page.getByRole("button", { name: "Pause acme" }).waitFor();
  assert.equal((await state("acme")).paused, false);

  const waiting = (await api("GET", "routes/hooks/messages")).json.messages.find(({ flow }) => flow === "acme");
  await view(page, `#/messages/hooks/${waiting.id}`);
  await shows(page, "It is due, and waits for its flow.");
  await view(page, "#/messages?route=order-timeout");
  await page.getByRole("link", { name: /^Retrying/ }).waitFor();
  assert.equal(await page.getByRole("link", { name: /^Flows/ }).count(), 0, "the route has no flows");
}

/** A filter applies without Enter, and nothing acts while it does not. */
async function typing(page) {
  const box = page.getByLabel("Error contains");
  const act = page.getByRole("button", { name: /^Purge all/ });
  for (const end of ["", " "]) {
    await box.fill(`no such error${end}`);
    assert.ok(await act.count() === 0 || await act.isDisabled(), "nothing acts on what the box does not name");
    await shows(page, "No dead letter matches.");
    assert.equal(await act.count(), 0);
  }
  await box.fill("");
  await box.pressSequentially("HTTP 422", { delay: 20 });
  await shows(page, "error contains HTTP 422");
  await eventually("it applies", async () => await act.count() === 1 && await act.isEnabled());
  assert.ok(await box.evaluate((field) => field === document.activeElement), "the box keeps the focus");
  assert.equal(await box.inputValue(), "HTTP 422");
}

/** Redrives a dead letter, beside the page, and waits until it is dead again with another error. */
async function diesAgain(id) {
  await stage("sink answers 409");
  await api("POST", `routes/${ROUTE}/dead/redrive`, { ids: [id] });
  await eventually(`${id} is dead again`, async () => {
    const { json } = await api("GET", `routes/${ROUTE}/messages/${id}`);
    return json.state === "dead" && json.last_error.includes("409");
  });
  await stage("sink answers 200");
}

async function deadLetters(page) {
  await stage("sink answers 422");
  await schedule(ROUTE, Array.from({ length: 6 }, (_, n) => ({ id: `dead-${n}`, payload: n })));
  await dead(6);
  await stage("sink answers 200");
  await expired(ROUTE, { id: "too-late", payload: 1 });
  await dead(7);

  await view(page, `#/messages/${ROUTE}/dead-0`);
  await shows(page, "It is a dead letter.");
  await page.getByRole("button", { name: "Redrive" }).click();
  await dialog(page).getByText("1 dead letter", { exact: true }).waitFor();
  await confirm(page, "Redrive");
  await shows(page, "Redrove 1 dead letter");
  await dead(6);

  await view(page, `#/dead?route=${ROUTE}`);
  for (const id of ["dead-1", "dead-2"]) await page.getByLabel(`Select ${id}`).check();
  await page.getByRole("button", { name: "Purge 2 selected" }).click();
  await dialog(page).getByText("2 dead letters", { exact: true }).waitFor();
  await diesAgain("dead-1");
  await confirm(page, "Purge", ROUTE);
  await shows(page, "Purged 1 dead letter of");
  await dead(5);
  assert.ok(await isGone("dead-2")());

  await view(page, `#/messages/${ROUTE}/dead-1`);
  await shows(page, "HTTP 409");
  await page.getByRole("button", { name: "Purge" }).click();
  await dialog(page).getByText("1 dead letter", { exact: true }).waitFor();
  await confirm(page, "Purge", ROUTE);
  await shows(page, "Purged 1 dead letter of");
  await dead(4);
  assert.ok(await isGone("dead-1")());
  await view(page, `#/dead?route=${ROUTE}`);

  // Grouped by reason, then by error.
  await page.getByRole("link", { name: "3 rejected", exact: true }).click();
  await shows(page, "reason rejected");
  await eventually("the list of rejected ones", async () => await page.locator("table.list tbody tr").count() === 3);
  await typing(page);
  const before = Number(await stage("sink count"));
  await page.getByRole("button", { name: "Redrive all that match" }).click();
  await dialog(page).getByText("reason rejected, error contains “HTTP 422”").waitFor();
  await dialog(page).getByText("3 dead letters").waitFor();
  await confirm(page, "Redrive");
  await dead(1);
  await eventually("they arrive", async () => Number(await stage("sink count")) === before + 3);
  await shows(page, "No dead letter matches.");

  await page.getByRole("link", { name: "Show all" }).click();
  await page.getByRole("button", { name: "Purge all dead letters" }).click();
  await dialog(page).getByRole("button", { name: "Back" }).click();
  assert.equal((await stats()).dead, 1, "going back changes nothing");
  await page.getByRole("button", { name: "Purge all dead letters" }).click();
  await confirm(page, "Purge", ROUTE);
  await dead(0);
  await shows(page, "has no dead letters");
}

/** A schedule is shown, runs, is paused and resumed. */
async function schedules(page) {
  const state = async () => (await api("GET", "schedules/beat")).json;
  await api("PUT", "schedules/beat", { route: ROUTE, cron: "* * * * * *", time_zone: "Europe/Berlin", payload: "beat" });
  await api("PUT", "schedules/rare", { route: ROUTE, cron: "0 3 1 1 *", payload: "rare", missed: "skip" });
  await view(page, "#/");
  await page.getByRole("link", { name: "Schedules" }).click();
  const items = page.getByRole("list", { name: "Schedules" }).getByRole("listitem");
  await items.nth(1).waitFor();
  assert.match(await items.nth(0).innerText(), /beat\s.*Every second, Europe\/Berlin/);
  await page.getByLabel("Name contains").fill("ra");
  assert.equal(await items.count(), 1);
  await page.getByRole("link", { name: "rare" }).click();
  const one = (name) => page.getByRole("article", { name: `Schedule ${name}` });
  await one("rare").getByText("not sent").waitFor();
  assert.equal(await one("rare").getByRole("list", { name: "Next occurrences" }).getByRole("listitem").count(), 5);
  const before = Number(await stage("sink count"));
  await view(page, "#/schedules?name=beat");
  await one("beat").getByRole("row").filter({ hasText: /delivered\s*\d/ }).nth(2).waitFor();
  await eventually("three more run", async () => Number(await stage("sink count")) >= before + 3);
  await one("beat").getByRole("button", { name: "Pause" }).click();
  await confirm(page, "Pause");
  await one("beat").getByText("paused").waitFor();
  assert.deepEqual([(await state()).paused, (await state()).following], [true, []]);
  await eventually("the last one has arrived", async () => !(await state()).in_flight);
  const paused = Number(await stage("sink count"));
  // One that was missed is sent with the default rule, and the others are shown.
  await new Promise((resolve) => setTimeout(resolve, 3500));
  await one("beat").getByRole("button", { name: "Run now" }).click();
  await confirm(page, "Run now");
  await eventually("it runs", async () => Number(await stage("sink count")) === paused + 1);
  await one("beat").getByRole("button", { name: "Resume" }).click();
  await confirm(page, "Resume");
  await one("beat").getByText(/\d missed/).waitFor();
  await one("beat").getByRole("button", { name: "Pause" }).waitFor();
  await api("DELETE", "schedules/beat");
  await shows(page, "there is no schedule `beat`");
  assert.equal(await items.count(), 1);
}

/** A dead letter is repaired in the form; one that was edited elsewhere is not overwritten. */
async function edits(page) {
  const before = Number(await stage("sink count"));
  await view(page, `#/messages/${ROUTE}/dead-x`);
  await page.getByRole("button", { name: "Edit and send again" }).click();
  await dialog(page).getByLabel("Headers, as JSON").fill("{");
  await confirm(page, "Send again");
  await dialog(page).getByText("the headers are not JSON").waitFor();
  await dialog(page).getByLabel("Headers, as JSON").fill('{"X-Note": "repaired"}');
  await api("PATCH", `routes/${ROUTE}/messages/dead-x`, { key: "elsewhere" });
  await confirm(page, "Send again");
  await dialog(page).getByText("409 changed").waitFor();
  await page.keyboard.press("Escape");
  assert.equal((await message("dead-x")).key, "elsewhere");
  await shows(page, "elsewhere");
  await page.getByRole("button", { name: "Edit and send again" }).click();
  await dialog(page).getByLabel("Payload").fill('{"order": "repaired"}');
  await dialog(page).getByLabel("Maximum attempts").fill("2");
  await confirm(page, "Send again");
  await shows(page, "dead-x is due now.");
  await dead(1);
  await eventually("it failed again", async () => (await message("dead-x")).payload === '{"order": "repaired"}');
  const { key, max_attempts: most, attempt_log: log } = await message("dead-x");
  assert.deepEqual([key, Number(most), log.length > 1], ["elsewhere", 2, true]);
  await page.getByRole("button", { name: "Send a test" }).click();
  await dialog(page).getByLabel("Delay").fill("1h");
  await confirm(page, "Send");
  await page.getByText(/^Scheduled as \w{26}\.$/).waitFor();
  const pending = (await api("GET", `routes/${ROUTE}/messages?payload_contains=repaired`)).json.messages;
  assert.deepEqual(pending.map((one) => [one.key, one.payload, one.headers["Punctual-Test"]]), [["elsewhere", '{"order": "repaired"}', "true"]]);
  assert.ok(Number(await stage("sink count")) >= before);
  await api("DELETE", `routes/${ROUTE}/messages/${pending[0].id}`);
}

async function without(name, allowed) {
  const page = await opened(name);
  await view(page, "#/messages?route=hooks&state=flows");
  await page.getByRole("list", { name: "Flows" }).waitFor();
  assert.equal(await page.getByRole("button", { name: /^Pause/ }).count(), 0);
  for (const address of ["#/", "#/schedules?name=rare", `#/dead?route=${ROUTE}`, `#/messages/${ROUTE}/dead-x`, `#/messages/${ROUTE}/later`]) {
    await view(page, address);
    await page.locator(".tile, .list, .waits").first().waitFor();
    for (const action of ["Pause", "Redrive", "Purge", "Deliver now", "Move", "Cancel", "Run now", "Edit", "Send a test"]) {
      const count = await page.getByRole("button", { name: action }).count();
      assert.ok(allowed.includes(action) || count === 0, `${name} sees ${action} at ${address}`);
    }
  }
  for (const action of allowed) assert.equal(await page.getByRole("button", { name: action }).count(), 1, `${name} sees ${action}`);
  assert.equal(await page.getByRole("checkbox").count(), 0);
  await page.context().close();
}

run(async () => {
  const page = await opened("ops", { statuses: [404, 409, 422], timezoneId: "Asia/Tokyo" });
  await one(page);
  await conflict(page);
  await pauses(page);
  await flows(page);
  await schedules(page);
  await deadLetters(page);
  await stage("sink answers 422");
  await schedule(ROUTE, { id: "dead-x", payload: 1 });
  await dead(1);
  await edits(page);
  await without("reader", []);
  await without("clerk", ["Deliver now", "Move", "Cancel", "Send a test"]);
});
