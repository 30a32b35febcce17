// Asks headcount about a request. If headcount refuses it, the application answers the client as headcount did. If
// headcount does not answer, the request is admitted. headcount uses the method, path and address of the request only
// if its server.trusted_proxies lists this program's address. A refusal may wait for up to 1 s, so the timeout is longer.
const url = process.env.HEADCOUNT_URL ?? 'http://127.0.0.1:7070/v1/check'
const longestToken = 4096

// If a check times out and no other was answered since it was sent, headcount hangs. Until it answers again, one request
// a second is checked; the others are admitted at once. Times are in milliseconds.
let hangs = false
let nextCheck = 0
let lastAnswer = -Infinity

/**
 * If the request opens a WebSocket or has the header Upgrade, pass all values of the header, or any text, as `upgrade`:
 * such a request is exempt nowhere. `language` is the value of Accept-Language, and `ticket` that of X-Headcount-Ticket:
 * the place of the client in the line, which it got with its last refusal.
 *
 * Resolves to undefined if the request is admitted, or to { status, headers, body }, the answer for the client.
 */
export async function check(token, options = {}) {
  const { method = 'GET', path = '/', address, accept, language, ticket, upgrade, timeout = 1500 } = options
  if (Buffer.byteLength(token) > longestToken) return { status: 431, headers: {}, body: 'The token is too long.\n' }
  const told = { authorization: `Bearer ${token}`, 'x-original-method': method, 'x-original-uri': path }
  if (address) told['x-forwarded-for'] = address
  if (accept) told.accept = accept
  if (language) told['accept-language'] = language
  if (ticket) told['x-headcount-ticket'] = ticket
  if (upgrade) told['x-original-upgrade'] = upgrade
  if (Object.values(told).some((value) => /[\0-\x1f\x7f]/.test(value))) {
    return { status: 400, headers: {}, body: 'The request cannot be used.\n' }
  }
  // A header's value is sent as one byte per character, so its UTF-8 bytes are written as characters.
  const headers = Object.entries(told).map(([name, value]) => [name, Buffer.from(value).toString('latin1')])
  const sent = performance.now()
  if (hangs) {
    if (sent < nextCheck) return undefined
    nextCheck = sent + 1000
  }
  try {
    // fetch keeps connections open and uses them again.
    const answer = await fetch(url, { headers, signal: AbortSignal.timeout(timeout) })
    const body = await answer.text()
    lastAnswer = performance.now()
    hangs = false
    if (![400, 429, 431].includes(answer.status)) return undefined
    return { status: answer.status, headers: Object.fromEntries(answer.headers), body }
  } catch (error) {
    if (error.name === 'TimeoutError' && lastAnswer < sent && !hangs) {
      hangs = true
      nextCheck = performance.now() + 1000
    }
    return undefined
  }
}
