// A producer as there are many: node zadd.js PORT KEY MESSAGES CANCELLED
//
// The same as zadd.py, with the node client: whole milliseconds as fractions of seconds.
const { createRequire } = require('node:module')
// Installed beside the build, not beside this file.
const { createClient } = createRequire(`${process.env.NODE_PROJECT}/package.json`)('redis')

async function main([port, key, messages, cancelled]) {
  const server = createClient({ url: `redis://127.0.0.1:${port}` })
  await server.connect()
  const start = Date.now() + 2000
  for (let n = 0; n < messages; n++) {
    const due = (start + n) / 1000
    await server.zAdd(key, { score: due, value: JSON.stringify({ by: 'node', n, due }) })
  }
  const unwanted = Array.from({ length: cancelled }, (_, n) => JSON.stringify({ by: 'node', cancelled: n }))
  for (const value of unwanted) await server.zAdd(key, { score: Date.now() / 1000 + 5, value })
  if ((await server.zCard(key)) < cancelled) throw new Error('the cancelled ones are not there')
  let removed = 0
  for (const value of unwanted) removed += await server.zRem(key, value)
  if (removed !== Number(cancelled)) throw new Error(`${removed} of ${cancelled} were still there`)
  await server.quit()
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error)
  process.exit(1)
})
