// The clock and the inbox of `punctual dev`, above the views; the views follow the clock.

const { assert, eventually, open, run, shows, stage, view } = require("./console.js");

run(async () => {
  const url = await stage("punctual dev");
  const post = async (path, body) => {
    const reply = await fetch(`${url}/v1/${path}`, { method: "POST", body: JSON.stringify(body) });
    assert.ok(reply.ok, `${path}: ${reply.status}`);
  };
  await post("routes/orders/messages", { id: "remind-42", delay: "1h", payload: { order: 42 } });
  const page = await open({ base: `${url}/console/` });
  await shows(page, "Development clock");
  await shows(page, "Inbox: 0 messages");
  await view(page, "#/messages?route=orders");
  await page.getByRole("link", { name: "remind-42" }).waitFor();
  const before = Date.parse(await page.locator(".development time").first().innerText());
  await page.getByRole("button", { name: "+10m" }).click();
  await eventually("the clock", async () => {
    const now = Date.parse(await page.locator(".development time").first().innerText());
    return now - before >= 600_000 && now - before < 660_000;
  });
  await shows(page, "Inbox: 0 messages");
  // The views are on the same clock: the message is due in 50 minutes.
  await shows(page, /in 4\d ?min|in 50 ?min|in 49/);
  await page.getByRole("button", { name: "+1h" }).click();
  await shows(page, "Inbox: 1 message");
  await page.getByText("Inbox: 1 message").click();
  await shows(page, '{"order":42}');
  await page.getByRole("button", { name: "Empty the inbox" }).click();
  await shows(page, "Inbox: 0 messages");
  await page.setViewportSize({ width: 390, height: 800 });
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "no sideways scrolling");
});
