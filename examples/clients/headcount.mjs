// Asks headcount about a user. Whoever is turned away gets the same answer; if headcount does not answer, all come in.
const url = process.env.HEADCOUNT_URL ?? 'http://127.0.0.1:7070/v1/check'

/** Resolves to undefined to let the user in, or to { status, headers, body } to answer instead. */
export async function check(token, timeout = 50) {
  if (/[\0-\x1f\x7f]/.test(token)) return { status: 400, headers: {}, body: 'The token cannot be used.\n' }
  try {
    const authorization = Buffer.from(`Bearer ${token}`).toString('latin1')
    const answer = await fetch(url, { headers: { authorization }, signal: AbortSignal.timeout(timeout) })
    const body = await answer.text()
    if (![400, 429, 431].includes(answer.status)) return undefined
    return { status: answer.status, headers: Object.fromEntries(answer.headers), body }
  } catch {
    return undefined
  }
}
