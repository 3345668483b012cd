// Schedules the payload on standard input: over HTTP, or with lua/produce.lua in Redis.
//
// Every call has an id, so it can be repeated after a 503, a timeout or a lost connection: the message is scheduled
// once. The delay counts from the attempt that is accepted.
import { createHash } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { buffer } from 'node:stream/consumers'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { createClient, ErrorReply } from 'redis'

const {
  PUNCTUAL_URL = 'http://127.0.0.1:8080',
  PUNCTUAL_TOKEN,
  REDIS_URL = 'redis://127.0.0.1:6379/0',
  PUNCTUAL_KEY_PREFIX = 'punctual', // `redis.key_prefix` of punctual
  PUNCTUAL_GIVE_UP_AFTER = '60', // seconds
} = process.env
// Timeout of one attempt, in ms; longer than `server.request_timeout`, so that the API answers first.
const TIMEOUT = 10_000
// Pauses between attempts, in ms, doubled each time. `Retry-After` may ask for more.
const FIRST_PAUSE = 200
const LONGEST_PAUSE = 5000
// The API refuses for now, or a proxy in front of it got no answer. A 429 is repeated only if it has `Retry-After`.
const REPEATED_STATUS = [408, 502, 503, 504]
// Temporary errors of Redis: it starts, is a replica or is full; or the route is full or has other partitions.
const REPEATED_ERRORS =
  /^(BUSY|LOADING|MASTERDOWN|MISCONF|OOM|READONLY|PUNCTUAL (limit-messages|limit-bytes|wrong-partition)) /

/** Repeating the call does not help. */
class Failed extends Error {}

/** Refused for now, or may have taken effect: repeat with the same id, after `retryAfter` ms. */
class Unavailable extends Error {
  constructor(message, retryAfter = 0) {
    super(message)
    this.retryAfter = retryAfter
  }
}

/** One attempt over HTTP. Returns the status of the message. */
async function post({ route, id, delay, payload, headers, onConflict }) {
  let reply, text
  try {
    reply = await fetch(`${PUNCTUAL_URL}/v1/routes/${encodeURIComponent(route)}/messages`, {
      method: 'POST',
      headers: {
        'Content-Type': 'application/json',
        ...(PUNCTUAL_TOKEN && { Authorization: `Bearer ${PUNCTUAL_TOKEN}` }),
      },
      body: JSON.stringify({ id, delay, payload_base64: payload.toString('base64'), headers, on_conflict: onConflict }),
      signal: AbortSignal.timeout(TIMEOUT),
    })
    text = await reply.text()
  } catch (error) {
    throw new Unavailable(error.cause?.message || error.cause?.code || error.message)
  }
  // 201: scheduled. 200: the id is known or was replaced; `status` says which.
  if (reply.ok) return JSON.parse(text).status
  if (reply.status === 409) return 'in_flight'
  const retryAfter = reply.headers.get('Retry-After')
  if (REPEATED_STATUS.includes(reply.status) || (reply.status === 429 && retryAfter)) {
    throw new Unavailable(`${reply.status}: ${text}`, 1000 * Number(retryAfter) || 0)
  }
  throw new Failed(`${reply.status}: ${text}`)
}

/** One attempt in Redis. Returns the status of the message. */
async function produce(server, script, { route, id, delay, payload, headers, onConflict }) {
  const registered = await server.hGet(`${PUNCTUAL_KEY_PREFIX}:routes`, route)
  if (!registered) throw new Failed(`no route ${route} is registered below ${PUNCTUAL_KEY_PREFIX}`)
  const n = JSON.parse(registered).partitions
  const index = crc32(id) % n
  const call = {
    keys: [`{${PUNCTUAL_KEY_PREFIX}:${route}:${index}/${n}}:pending`],
    arguments: ['1', id, `+${delay}`, payload, JSON.stringify({ headers, on_conflict: onConflict })],
  }
  const unlessUnknown = (error) => {
    if (!error.message.startsWith('NOSCRIPT')) throw error
    // After a restart or a failover; Redis keeps it from now on.
    return server.eval(script, call)
  }
  const [status] = await server.evalSha(createHash('sha1').update(script).digest('hex'), call).catch(unlessUnknown)
  return status
}

/** CRC-32 of IEEE; `zlib.crc32` needs Node 20.15. */
function crc32(text) {
  let crc = ~0
  for (const byte of Buffer.from(text)) {
    crc ^= byte
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 && 0xedb88320)
  }
  return ~crc >>> 0
}

/** Calls `use` with a new connection. A service would keep one, with the default `reconnectStrategy`. */
async function inRedis(use) {
  const server = createClient({ url: REDIS_URL, socket: { connectTimeout: TIMEOUT, reconnectStrategy: false } })
  server.on('error', () => {}) // the call fails, too
  const late = sleep(TIMEOUT, undefined, { ref: false }).then(() => {
    throw new Error(`no answer within ${TIMEOUT} ms`)
  })
  try {
    return await Promise.race([late, server.connect().then(() => use(server))])
  } catch (error) {
    if (error instanceof ErrorReply && !REPEATED_ERRORS.test(error.message)) throw new Failed(error.message)
    // Otherwise there was no answer: not connected, disconnected, too late.
    throw error instanceof Failed ? error : new Unavailable(error.message || error.code)
  } finally {
    if (server.isOpen) await server.disconnect()
  }
}

/** Repeats an attempt while it may help, with growing, random pauses. */
async function repeat(attempt) {
  const deadline = performance.now() + 1000 * Number(PUNCTUAL_GIVE_UP_AFTER)
  for (let pause = FIRST_PAUSE; ; pause = Math.min(2 * pause, LONGEST_PAUSE)) {
    try {
      return await attempt()
    } catch (error) {
      if (!(error instanceof Unavailable)) throw error
      const wait = Math.max(error.retryAfter, (pause * (1 + Math.random())) / 2)
      if (performance.now() + wait > deadline) throw error
      console.error(`schedule: ${error.message}; next attempt in ${(wait / 1000).toFixed(1)} s`)
      await sleep(wait)
    }
  }
}

async function main() {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      script: { type: 'string' },
      header: { type: 'string', multiple: true, default: [] },
      replace: { type: 'boolean', default: false },
    },
  })
  const [route, id, delay] = positionals
  const headers = values.header.map((text) => /^([^:]+):\s*(.*?)\s*$/s.exec(text))
  if (positionals.length !== 3 || !/^\d+$/.test(delay) || headers.includes(null)) {
    throw new TypeError('ROUTE ID DELAY_MS are needed; a header is `NAME: VALUE`')
  }
  const message = {
    route,
    id,
    delay: Number(delay),
    payload: await buffer(process.stdin),
    headers: Object.fromEntries(headers.map(([, name, value]) => [name, value])),
    onConflict: values.replace ? 'replace' : 'keep',
  }
  const script = values.script && (await readFile(values.script, 'utf8'))
  const attempt = script ? () => inRedis((server) => produce(server, script, message)) : () => post(message)
  const status = await repeat(attempt)
  if (status === 'in_flight') throw new Failed(`${id} is being sent and was not replaced`)
  console.log(status, id)
}

try {
  await main()
} catch (error) {
  console.error(`schedule: ${error.message}`)
  if (error instanceof TypeError) {
    console.error("usage: node schedule.js [--script FILE] [--header 'NAME: VALUE']... [--replace] ROUTE ID DELAY_MS")
  }
  process.exitCode = error instanceof TypeError ? 2 : 1
}
