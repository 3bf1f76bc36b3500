// Asks the gateway, with the key when there is one. The key lives in this tab's session alone.

const KEPT = "workhorse.key";
let key = null;
try {
  key = sessionStorage.getItem(KEPT);
} catch { /* storage is forbidden: the key lives as long as the page */ }

export const hasKey = () => key !== null;

export function setKey(next) {
  key = next;
  try {
    if (next === null) sessionStorage.removeItem(KEPT);
    else sessionStorage.setItem(KEPT, next);
  } catch { /* as above */ }
}

export class NeedsKey extends Error {}

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// The response to a request; NeedsKey at 401, Refused with the service's own words at any other.
export async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (key !== null) headers.Authorization = `Bearer ${key}`;
  const response = await fetch(path, { cache: "no-store", credentials: "omit", ...options, headers });
  if (response.ok) return response;
  let message = `HTTP ${response.status}`;
  try {
    message = String((await response.json()).error.message);
  } catch { /* it did not come from the gateway */ }
  if (response.status === 401) throw new NeedsKey(message);
  throw new Refused(response.status, message);
}

export const read = async (path) =>
  (await ask(path, { signal: AbortSignal.timeout(15000) })).json();
