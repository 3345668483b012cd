// bench.js PORT COMMAND [COUNT [SIZE]]: BullMQ as its documents recommend, `addBulk` and one worker; prints one JSON object.
//
//   schedule  adds delayed jobs that are not due
//   process   processes jobs that became due, with an empty handler
//   burst     how late jobs come that are due within one second
//   idle      a worker without jobs, until it is stopped
import { setTimeout as sleep } from 'node:timers/promises'
import { Queue, Worker } from 'bullmq'
import { Redis } from 'ioredis'

const [port, command, count = 0, size = 100] = process.argv.slice(2).map((text, n) => (n === 1 ? text : Number(text)))
const BULK = 1000
const HOUR = 3_600_000
// Completed jobs are removed, as "going to production" recommends.
const REMOVED = { removeOnComplete: true }

const connection = { host: '127.0.0.1', port, maxRetriesPerRequest: null }
const queue = new Queue('bench', { connection })
await queue.waitUntilReady()
const redis = new Redis(connection)

async function add(dueOf) {
    const text = 'x'.repeat(Math.max(0, size - '{"due":1795255200000,"t":""}'.length))
    for (let at = 0; at < count; at += BULK) {
        const jobs = Array.from({ length: Math.min(BULK, count - at) }, (_, n) => {
            const due = dueOf(at + n)
            const data = size < 40 ? { n: 10 ** (size - 7) + at + n } : { due, t: text }
            const jobId = `m${String(at + n).padStart(15, '0')}`
            return { name: 'job', data, opts: { ...REMOVED, jobId, delay: Math.max(0, due - Date.now()) } }
        })
        await queue.addBulk(jobs)
    }
}

// Resolves when `count` jobs were processed.
function work(handler) {
    let done = 0
    return new Promise((resolve) => {
        const worker = new Worker('bench', handler, { connection, concurrency: 200 })
        worker.on('completed', () => ++done === count && resolve())
    })
}

async function redisSeconds() {
    const info = await redis.info('cpu')
    const of = (name) => Number(info.match(new RegExp(`^${name}:([0-9.]+)`, 'm'))[1])
    return of('used_cpu_user') + of('used_cpu_sys')
}

async function measure(run) {
    const [cpu, started] = [await redisSeconds(), performance.now()]
    await run()
    const seconds = (performance.now() - started) / 1000
    return { count, seconds, rate: count / seconds, redis_us: ((await redisSeconds()) - cpu) * 1e6 / count }
}

async function burst() {
    const late = []
    const all = work(async (job) => void late.push(Date.now() - job.data.due))
    const base = Date.now() + 3000 + count / 10
    await add((n) => base + Math.floor((n * 1000) / count))
    if (Date.now() >= base) throw new Error('jobs were due before all were added')
    await all
    late.sort((a, b) => a - b)
    return { measured: count, p50_ms: late[count >> 1], p99_ms: late[Math.floor(count * 0.99)], max_ms: late[count - 1] }
}

let result
if (command === 'schedule') {
    result = await measure(() => add(() => Date.now() + HOUR))
} else if (command === 'process') {
    const due = Date.now() + 3000 + count / 10
    await add(() => due)
    await sleep(Math.max(0, due - Date.now()))
    result = await measure(() => work(async () => {}))
} else if (command === 'burst') {
    result = await burst()
} else {
    new Worker('bench', async () => {}, { connection, concurrency: 200 })
    await new Promise(() => {})
}
console.log(JSON.stringify(result))
process.exit(0)
