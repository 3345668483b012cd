// Payloads, headers and notes are shown as text: markup, a megabyte, bytes, right-to-left texts, large numbers. Markup never runs.

const { api, assert, eventually, opened, run, schedule, shows, stage, tasks, view } = require("./console.js");

const MARKUP = "<script>window.hit = 1</script><img src=x onerror='window.hit = 2'><svg onload='window.hit = 3'>";
const ROUTE = "invoices";
/** Longest time in ms in which the page may not react. */
const STALL = 100;
const MEGABYTE = 1024 * 1024;
const TRACE = "0af7651916cd43dd8448eb211c80319c";
const RTL = "שלום \u202eevil\u202c عالم";

const held = (id, more) => schedule(ROUTE, { id, delay: "1h", ...more });
const shown = (page) => page.locator("pre").innerText();

async function openMessage(page, id) {
  await view(page, `#/messages/${ROUTE}/${id}`);
  await page.getByRole("heading", { name: id }).waitFor();
  await page.locator("pre").waitFor();
}

run(async () => {
  await held("markup", { payload: MARKUP, key: MARKUP, headers: { "X-Markup": MARKUP, "X-Rtl": RTL, traceparent: `00-${TRACE}-b7ad6b7169203331-01` }, content_type: "text/html" });
  const json = '{"id":9007199254740993,"list":[],"text":"a\\n{\\"b\\":1}","nested":{"price":1.10,"none":null},"big":123456789012345678901234567890}';
  await schedule(ROUTE, { id: "json", delay: "1h", payload: json, content_type: "application/json" });
  const bytes = Buffer.from(Array.from({ length: 300 }, (_, n) => n % 256));
  await held("bytes", { payload_base64: bytes.toString("base64") });
  const mega = `${"<b>é</b>\n".repeat(MEGABYTE / 10 - 1)}the end`;
  await held("mega", { payload: mega });
  await held("mega-bytes", { payload_base64: Buffer.alloc(MEGABYTE, 0xff).toString("base64") });
  await held("empty", { payload: "" });
  // The last day of the year 9999 at an offset, which RFC 3339 cannot say in UTC.
  await held("far", { payload: "x", properties: { correlation_id: RTL, priority: 5 }, delay: undefined, deliver_at: 253402387199999 });

  const page = await opened("ops", { acceptDownloads: true });
  const ended = await tasks(page);
  await openMessage(page, "markup");
  assert.equal(await shown(page), MARKUP);
  assert.equal(await page.locator("main script, main img, main svg").count(), 0);
  await shows(page, MARKUP);
  assert.equal(await page.getByText(TRACE, { exact: true }).count(), 1);
  // Its direction ends with it.
  const isolated = await page.getByText(RTL).first().evaluate((element) => getComputedStyle(element).unicodeBidi);
  assert.equal(isolated, "isolate");
  await page.getByRole("button", { name: "Hex" }).click();
  assert.match(await shown(page), /^00000000 {2}3c 73 63 72 69 70 74 3e 77 69 6e 64 6f 77 2e 68 {2}<script>window\.h\n/);

  await openMessage(page, "json");
  assert.equal(await shown(page), `{
  "id": 9007199254740993,
  "list": [],
  "text": "a\\n{\\"b\\":1}",
  "nested": {
    "price": 1.10,
    "none": null
  },
  "big": 123456789012345678901234567890
}`);
  await page.getByRole("button", { name: "Text" }).click();
  assert.equal(await shown(page), json);

  await openMessage(page, "bytes");
  assert.equal(await page.getByRole("button", { name: "Text" }).count(), 0, "bytes are no text");
  assert.match(await shown(page), /^00000000 {2}00 01 02 .*\n00000010 {2}10 11 /);
  const saved = page.waitForEvent("download");
  await page.getByRole("button", { name: "Save" }).click();
  const chunks = [];
  for await (const part of await (await saved).createReadStream()) chunks.push(part);
  assert.deepEqual(Buffer.concat(chunks), bytes);

  await openMessage(page, "mega");
  const parts = [];
  for (let n = 1; ; n += 1) {
    await page.getByText(`part ${n} of`).waitFor();
    parts.push(await page.locator("pre").textContent());
    const next = page.getByRole("button", { name: "Next part" });
    if (await next.isDisabled()) break;
    await next.click();
  }
  assert.equal(parts.join(""), mega, "in parts, it is whole");
  await openMessage(page, "mega-bytes");
  const { cpu, elapsed } = await ended();
  console.log(`longest task with payloads of 1 MiB: ${cpu} ms of CPU, ${elapsed} ms elapsed`);
  assert.ok(cpu <= STALL, `${cpu} ms`);
  await openMessage(page, "far");
  await shows(page, "correlation_id");
  await shows(page, "in 2,9");
  await view(page, `#/messages/${ROUTE}/empty`);
  await shows(page, "It is empty.");

  // What a sink replied, and the note of a pause.
  await stage("sink answers 422");
  await schedule("order-timeout", { id: "refused", payload: MARKUP });
  await eventually("dead", async () => (await api("GET", "routes/order-timeout")).json.dead === 1);
  await view(page, "#/dead?route=order-timeout");
  await page.locator("td.why", { hasText: "<script>window.hit = 1</script>" }).waitFor();
  await api("POST", "routes/stock/pause", { note: `${MARKUP} ${RTL}` });
  await view(page, "#/");
  await shows(page, MARKUP);

  // Integers that no double holds, in the overview as in a message.
  const huge = "9007199254740993";
  await page.route("**/v1/overview", async (route) => {
    const response = await route.fetch();
    const text = (await response.text()).replace(/"pending":\d+,"retrying":0,"route":"order-timeout"/, `"pending":${huge},"retrying":0,"route":"order-timeout"`)
      .replace(/"delivered":\d+/, '"delivered":18446744073709551615');
    assert.ok(text.includes(huge), text);
    await route.fulfill({ response, body: text });
  });
  await page.getByRole("link", { name: "9,007,199,254,740,993 pending" }).waitFor();

  assert.equal(await page.evaluate(() => window.hit), undefined);
});
