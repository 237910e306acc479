// Questions to the server. The token lives in this module's memory and nowhere else.

let token = "";
let door = null;

export class Refusal extends Error {
  constructor(type, message) {
    super(message);
    this.type = type;
  }
}

/** Asks a route: GET without a body, else POST. Where the server wants a token, `knock` is asked for it first. */
export async function ask(path, body, { knock, signal } = {}) {
  for (;;) {
    const sent = token;
    const answer = await send(path, body, signal);
    if (answer.status !== 401) return read(answer);
    if (sent !== token) continue; // another question has been given the token meanwhile
    door ??= knock(sent !== "").finally(() => { door = null; });
    token = await door;
  }
}

async function send(path, body, signal) {
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  if (body !== undefined) headers["content-type"] = "application/json";
  const method = body === undefined ? "GET" : "POST";
  try {
    return await fetch(path, { method, headers, signal, body: body && JSON.stringify(body), cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("offline", "");
  }
}

async function read(answer) {
  const value = await answer.json().catch(() => null);
  if (answer.ok && value !== null) return value;
  throw new Refusal(value?.error?.type ?? "internal", value?.error?.message ?? `HTTP ${answer.status}`);
}
