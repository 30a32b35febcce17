// Asks headcount about the requests in its arguments, and prints the client's results. See tests/clients.rs.
import { check } from '../../examples/clients/headcount.mjs'

const [seconds, ...requests] = process.argv.slice(2)

async function ask(described) {
  const [token, options] = JSON.parse(described)
  const timeout = 1000 * Number(seconds)
  const answer = await check(typeof token === 'number' ? 'x'.repeat(token) : token, { timeout, ...options })
  if (!answer) return 'in'
  const retries = /^\d+$/.test(answer.headers['retry-after']) ? 'True' : 'False'
  return `${answer.status} ${retries} ${answer.body[0]}`
}

async function untilRefused(described) {
  while (await ask(described) === 'in') await new Promise((resolve) => setTimeout(resolve, 10))
}

if (requests[0] === 'callers') {
  await Promise.all(Array.from({ length: Number(requests[1]) }, () => untilRefused(requests[2])))
} else {
  for (const described of requests) console.log(await ask(described))
}
