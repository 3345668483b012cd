// 10,000 dead letters: page by page, without a stall, then all of them redriven.

const { api, assert, dialog, eventually, opened, run, schedule, shows, stage, tasks, view } = require("./console.js");

const ROUTE = "order-timeout";
const LETTERS = 10_000;
const ARRAY = 1000;
/** Longest time in ms in which the page may not react. */
const STALL = 100;

run(async () => {
  await stage("sink answers 422");
  for (let from = 0; from < LETTERS; from += ARRAY) {
    await schedule(ROUTE, Array.from({ length: ARRAY }, (_, n) => ({ id: `m${from + n}`, payload: { n } })));
  }
  await eventually("all are dead", async () => (await api("GET", `routes/${ROUTE}`)).json.dead === LETTERS, 60_000);

  const page = await opened();
  await view(page, `#/dead?route=${ROUTE}`);
  await page.getByRole("link", { name: "10,000 rejected", exact: true }).waitFor();
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
  assert.equal(seen, LETTERS);
  assert.ok(cpu <= STALL, `${cpu} ms`);

  await page.getByRole("link", { name: "Previous page" }).click();
  await page.getByRole("link", { name: "Next page" }).waitFor();
  await page.getByRole("link", { name: "First page" }).click();
  await stage("sink answers 200");
  await page.getByRole("button", { name: "Redrive all dead letters" }).click();
  await dialog(page).getByText("10,000 dead letters").waitFor();
  await dialog(page).getByRole("button", { name: "Redrive" }).click();
  await shows(page, "Redrove 10,000 dead letters");
  await shows(page, "has no dead letters");
});
