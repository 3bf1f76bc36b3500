// Try the model: one streamed answer at a time, with its own time to first token and speed.

import { by, el } from "./dom.js";
import { NeedsKey, ask } from "./service.js";
import { digits, language, say, seconds } from "./words.js";

const LONGEST_ANSWER_TOKENS = 2048;

let messages = [];
let running = null; // the AbortController of the answer that is being written
let pressEmpty = null;

export function setUp(onKeyWanted) {
  const text = by("chat_text");
  by("chat").addEventListener("submit", (event) => {
    event.preventDefault();
    const said = text.value.trim();
    if (!said || running) return;
    text.value = "";
    answer(said).catch((error) => {
      if (error instanceof NeedsKey) onKeyWanted(error);
      else throw error;
    });
  });
  text.addEventListener("keydown", (event) => {
    // An input method's own Enter takes a candidate and sends nothing.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
    event.preventDefault();
    by("chat").requestSubmit();
  });
  by("chat_stop").addEventListener("click", () => {
    running?.abort();
    text.focus();
  });
  by("chat_new").addEventListener("click", () => {
    running?.abort();
    messages = [];
    by("chat_log").replaceChildren();
    by("chat_new").hidden = true;
    empty();
    text.focus();
  });
}

// The words that stand in an empty log, in the reader's language.
function empty() {
  pressEmpty = el("p", { class: "dim" }, say("chat_empty"));
  by("chat_log").replaceChildren(pressEmpty);
}

export function show(state) {
  by("chat_text").setAttribute("placeholder", say("chat_hint"));
  if (!messages.length && !running && pressEmpty?.dataset.language !== language) {
    empty();
    pressEmpty.dataset.language = language;
  }
  const names = [...new Set(state.engines.map((engine) => engine.model_name))];
  by("chat_model_row").hidden = names.length < 2;
  const select = by("chat_model");
  if (select.dataset.names === JSON.stringify(names)) return;
  const before = select.value;
  select.dataset.names = JSON.stringify(names);
  select.replaceChildren(...names.map((name) => el("option", { value: name }, name)));
  if (names.includes(before)) select.value = before;
}

async function answer(said) {
  const log = by("chat_log");
  if (!messages.length) log.replaceChildren();
  messages.push({ role: "user", content: said });
  log.append(bubble("user", say("you"), said).box);
  const model = by("chat_model").value;
  const told = bubble("assistant", model, "");
  told.figures.textContent = say("chat_wait");
  log.append(told.box);
  log.scrollTop = log.scrollHeight;
  running = new AbortController();
  busy(true);
  const answered = new Answer(told, log);
  try {
    const response = await ask("v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ model, messages, stream: true, stream_options: { include_usage: true }, max_tokens: LONGEST_ANSWER_TOKENS }),
      signal: running.signal,
    });
    await answered.take(response);
  } catch (error) {
    if (error.name === "AbortError") answered.end(say("chat_stopped"));
    else {
      answered.fail(error.status === undefined ? say("chat_lost", error.message) : error.message);
      if (error instanceof NeedsKey) throw error;
    }
  } finally {
    running = null;
    busy(false);
    if (answered.text) messages.push({ role: "assistant", content: answered.text });
    else messages.pop(); // an unanswered question is not asked again with the next one
  }
}

function busy(now) {
  by("chat_send").hidden = now;
  by("chat_stop").hidden = !now;
  by("chat_new").hidden = false;
  by("chat_log").setAttribute("aria-busy", String(now));
}

function bubble(kind, name, text) {
  const body = el("pre", null, text);
  const figures = el("p", { class: "figures" });
  const box = el("article", { class: `say ${kind}`, "aria-label": name }, body, figures);
  return { box, body, figures };
}

// One answer while it comes: its text, its thoughts, its figures.
class Answer {
  constructor(told, log) {
    Object.assign(this, { told, log, text: "", pieces: 0, timings: null, usage: null, cut: false });
    this.sent = performance.now();
    this.first = null;
    this.last = null;
    this.thoughts = null;
  }

  async take(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      rest += value;
      const lines = rest.split("\n");
      rest = lines.pop();
      for (const line of lines) if (line.startsWith("data:")) this.event(line.slice(5).trim());
      if (this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 120) this.log.scrollTop = this.log.scrollHeight;
    }
    if (!this.told.box.classList.contains("bad")) this.end(this.cut ? say("chat_length", LONGEST_ANSWER_TOKENS) : null);
  }

  event(data) {
    if (data === "[DONE]") return;
    let found;
    try {
      found = JSON.parse(data);
    } catch {
      return;
    }
    if (found.error) {
      this.fail(String(found.error.message ?? found.error));
      return;
    }
    this.timings = found.timings ?? this.timings;
    this.usage = found.usage ?? this.usage;
    const choice = found.choices?.[0];
    if (choice?.finish_reason === "length") this.cut = true;
    if (choice?.delta?.reasoning_content) this.think(choice.delta.reasoning_content);
    if (choice?.delta?.content) this.write(choice.delta.content);
  }

  came() {
    this.last = performance.now();
    this.first ??= this.last;
    this.pieces += 1;
  }

  write(piece) {
    this.came();
    this.text += piece;
    this.told.body.append(piece);
    this.tell(null);
  }

  think(piece) {
    this.came();
    if (!this.thoughts) {
      this.thoughts = el("pre", { class: "dim" });
      this.told.box.prepend(el("details", null, el("summary", null, say("chat_thinks")), this.thoughts));
    }
    this.thoughts.append(piece);
    this.tell(null);
  }

  tell(note) {
    const parts = [];
    if (this.first !== null) parts.push(`${say("ttft")} ${seconds((this.first - this.sent) / 1000)}`);
    const exact = this.timings?.predicted_per_second;
    const spent = this.last === null ? 0 : (this.last - this.first) / 1000;
    const seen = spent > 0.05 ? (this.pieces - 1) / spent : null;
    if (exact) parts.push(`${digits(exact)} tok/s`);
    else if (seen) parts.push(`≈ ${digits(seen)} tok/s`);
    const tokens = this.timings?.predicted_n ?? this.usage?.completion_tokens;
    if (tokens) parts.push(`${tokens} tok`);
    if (note) parts.push(note);
    this.told.figures.textContent = parts.join(" · ");
  }

  end(note) {
    this.tell(note);
  }

  fail(message) {
    this.told.box.classList.add("bad");
    this.told.figures.textContent = message;
  }
}
