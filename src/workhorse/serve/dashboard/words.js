// Every word of the page in both languages, and how figures and times are written.

const WORDS = {
  skip: ["Skip to the content", "跳到正文"],
  forget: ["Forget the key", "清除密钥"],
  key_title: ["This service wants a key", "此服务需要密钥"],
  key_label: ["API key", "API 密钥"],
  key_use: ["Use it", "使用"],
  key_kept: ["It is kept in this tab only.", "密钥仅保存在当前标签页。"],
  key_wrong: ["The service does not accept this key.", "服务不接受此密钥。"],
  lost: ["The gateway has not answered since {0}. Trying again.", "网关自 {0} 起没有应答，正在重试。"],
  alarms: ["Alarms", "告警"],
  alarms_over: ["Over: {0}", "已解除：{0} 条"],
  why: ["Why it matters", "影响"],
  remedy: ["What to do", "处理办法"],
  check: ["Then look", "验证"],
  command: ["Command", "命令"],
  copy: ["Copy", "复制"],
  copied: ["Copied", "已复制"],
  evidence: ["Evidence", "证据"],
  source: ["Source", "来源"],
  since: ["since {0}", "自 {0}"],
  from_to: ["{0} to {1}", "{0} 至 {1}"],
  now: ["Now", "当前"],
  curves: ["Over time", "历史曲线"],
  range: ["Range", "时间范围"],
  curves_none: ["Nothing is drawn: {0}", "无法绘图：{0}"],
  curves_soon: ["The first points come within a minute.", "一分钟内会出现第一批数据。"],
  try: ["Try the model", "试用模型"],
  model: ["Model", "模型"],
  chat_new: ["New chat", "新对话"],
  chat_text: ["Message", "消息"],
  chat_hint: ["Ask something", "输入问题"],
  chat_keys: ["Enter sends, Shift+Enter: new line", "Enter 发送，Shift+Enter 换行"],
  chat_send: ["Send", "发送"],
  chat_stop: ["Stop", "停止"],
  chat_empty: ["The answer comes with its time to first token and its speed.", "回答会附上首字延迟和生成速度。"],
  chat_wait: ["waiting for the first token", "等待首个词元"],
  chat_thinks: ["Thinking", "思考过程"],
  chat_stopped: ["stopped", "已停止"],
  chat_length: ["cut at {0} tokens", "已达 {0} 词元上限"],
  chat_lost: ["The connection broke: {0}", "连接中断：{0}"],
  you: ["You", "你"],
  plan: ["What runs and why", "运行方案与理由"],
  plan_none: ["No plan stands yet: {0}.", "尚无方案：{0}。"],
  plan_summary: ["{0} on {1}: {2} slots of {3} tokens", "{0}，引擎 {1}：{2} 个槽位，每个 {3} 词元"],
  plan_summary_one: ["{0} on {1}: {2} slot of {3} tokens", "{0}，引擎 {1}：{2} 个槽位，{3} 词元"],
  settings: ["Settings", "各项设置"],
  setting: ["Setting", "设置"],
  value: ["Value", "取值"],
  because: ["Because", "原因"],
  option: ["Option", "选项"],
  not_taken: ["Not taken: {0}", "未采用：{0} 项"],
  memory_budget: ["Memory budget", "内存预算"],
  budget_of: ["{0} of {1} planned", "计划占用 {0} / {1}"],
  budget: ["{0} planned", "计划占用 {0}"],
  budget_items: ["Item by item", "明细"],
  item: ["Item", "项目"],
  size: ["Size", "大小"],
  from: ["From", "来源"],
  speed: ["Speed of one stream", "单路速度"],
  figure: ["Figure", "指标"],
  decode: ["Decode", "解码"],
  forecast: ["Forecast", "预测"],
  forecast_of: ["{0}, forecast", "{0}（预测）"],
  measured: ["Measured", "实测"],
  measured_of: ["{0}, measured", "{0}（实测）"],
  measured_by: ["standard protocol, {0}", "标准测试，{0}"],
  ceiling: ["Ceiling", "上限"],
  ceiling_long: ["Ceiling of the memory", "内存带宽上限"],
  load: ["Loading", "加载"],
  findings: ["Notes on the plan", "方案提示"],
  share: ["{0} of the ceiling", "达到上限的 {0}"],
  one_stream: ["One stream", "单路解码"],
  all_streams: ["All streams", "总吞吐"],
  prefill: ["Prefill", "预填充"],
  ttft: ["Time to first token", "首字延迟"],
  ttft_latest: ["of the latest answers", "最近回答"],
  idle: ["No answer in the last minutes.", "最近几分钟没有回答。"],
  slots: ["Slots", "槽位"],
  waiting: ["{0} waiting", "{0} 个等待"],
  queue: ["Slots and queue", "槽位与队列"],
  busy: ["busy", "使用中"],
  queued: ["waiting", "等待"],
  memory: ["Main memory", "内存"],
  total: ["total", "总量"],
  engine: ["engine", "引擎"],
  used: ["used", "已用"],
  swap: ["{0} in swap", "交换区 {0}"],
  others: ["{0} CPUs busy with other work", "其他进程占用 {0} 个 CPU"],
  others_title: ["Other processes", "其他进程占用"],
  vram: ["Card memory", "显存"],
  power: ["Power", "功耗"],
  power_cap: ["cap", "上限"],
  heat: ["Temperature", "温度"],
  card_busy: ["busy", "利用率"],
  throttled: ["slowed by: {0}", "降频原因：{0}"],
  foreign: ["other processes: {0}", "其他进程：{0}"],
  link: ["PCIe {0}.0 ×{1}", "PCIe {0}.0 ×{1}"],
  usage: ["Use by key", "各密钥用量"],
  usage_since: ["since {0}", "自 {0}"],
  key: ["Key", "密钥"],
  requests: ["Requests", "请求"],
  tokens_in: ["In", "输入"],
  tokens_cached: ["Cached", "缓存命中"],
  tokens_out: ["Out", "输出"],
  seconds: ["Time", "时长"],
  nobody: ["no key", "无密钥"],
  templates: ["Templates", "提示模板"],
  template: ["Template", "模板"],
  hits: ["Hits", "命中率"],
  saved: ["Saved", "节省"],
  template_state: ["State", "状态"],
  template_waiting: ["waiting", "等待预填充"],
  template_prefilling: ["prefilling {0}", "预填充 {0}"],
  template_ready: ["ready", "就绪"],
  template_refused: ["refused", "已拒绝"],
  machine: ["The machine", "机器"],
  events: ["What happened", "事件"],
  metrics: ["Prometheus metrics", "Prometheus 指标"],
  grafana: ["Board for Grafana", "Grafana 面板"],
  version: ["workhorse {0}", "workhorse {0}"],
  uptime: ["up {0}", "已运行 {0}"],
  restarts: ["{0} restarts", "重启 {0} 次"],
  restarts_one: ["1 restart", "重启 1 次"],
  colon: [": ", "："],
  range_900: ["15 min", "15 分钟"],
  range_3600: ["1 h", "1 小时"],
  range_86400: ["24 h", "24 小时"],
  range_604800: ["7 d", "7 天"],
  range_7776000: ["90 d", "90 天"],
  planning: ["planning", "制定方案"],
  starting: ["starting", "启动中"],
  ready: ["ready", "就绪"],
  restarting: ["restarting", "重启中"],
  given_up: ["given up", "已放弃重启"],
  out_of_service: ["out of service", "已停止服务"],
  stopped: ["stopped", "已停止"],
  reloading: ["reloading", "重新加载"],
  draining: ["finishing", "收尾中"],
  say_planning: ["Looking at this machine and planning how to run {0}.", "正在检测本机，为 {0} 制定运行方案。"],
  say_starting: ["The engine is loading {0}. Requests wait for it.", "引擎正在加载 {0}，请求会等待。"],
  say_restarting: ["The engine of {0} ended and is being started again. Requests wait for it.", "{0} 的引擎已退出，正在重新启动，请求会等待。"],
  say_reloading: ["The engine of {0} is being replaced. Requests wait for it.", "正在更换 {0} 的引擎，请求会等待。"],
  say_out_of_service: ["The engine of {0} is out of service and is not started any more.", "{0} 的引擎已停止服务，不再重启。"],
  say_given_up: ["The engine of {0} kept ending and is not started any more.", "{0} 的引擎反复退出，已不再重启。"],
  say_stopped: ["The engine of {0} is stopped.", "{0} 的引擎已停止。"],
  say_other: ["The engine of {0}: {1}.", "{0} 的引擎：{1}。"],
  say_none: ["No engine is behind this gateway yet.", "网关后还没有引擎。"],
  point_at: ["{0}: {1}, between {2} and {3} in this range", "{0}：{1}，此范围内 {2} 至 {3}"],
  no_points: ["{0}: no points in this range", "{0}：此范围内没有数据"],
  cpus: ["CPUs", "CPU 数"],
  with_unit: ["{0}, {1}", "{0}（{1}）"],
};

const KEPT = "workhorse.language";

function kept() {
  try {
    return localStorage.getItem(KEPT);
  } catch {
    return null; // storage is forbidden: the browser's language it is
  }
}

const chosen = kept() || ((navigator.language || "").toLowerCase().startsWith("zh") ? "zh" : "en");
export let language = chosen === "zh" ? "zh" : "en";

export function setLanguage(next) {
  language = next;
  try {
    localStorage.setItem(KEPT, next);
  } catch { /* it holds for this page */ }
}

// The words for a key, {0} and so on filled in; a key that is not here is shown as it is.
export function say(key, ...values) {
  const both = Object.hasOwn(WORDS, key) ? WORDS[key] : [key, key];
  return both[language === "zh" ? 1 : 0].replace(/\{(\d)\}/g, (_, i) => String(values[i]));
}

export const knows = (key) => Object.hasOwn(WORDS, key);

// A Text of the service's documents.
export const words = (text) => (text ? text[language] : "");

export const UNKNOWN = "—";

export function digits(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (value === 0 || (size >= 0.995 && Math.abs(value - Math.round(value)) < 0.005 * size)) return String(Math.round(value));
  return size < 10 ? value.toFixed(2) : size < 100 ? value.toFixed(1) : value.toFixed(0);
}

export function bytes(value) {
  if (value === null || value === undefined) return UNKNOWN;
  const [unit, name] = byteUnit(value);
  return `${digits(value / unit)} ${name}`;
}

export function byteUnit(value) {
  for (const [unit, name] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (Math.abs(value) >= unit) return [unit, name];
  }
  return [1, "B"];
}

export function seconds(value) {
  if (value === null || value === undefined) return UNKNOWN;
  if (value < 1) return `${digits(value * 1000)} ms`;
  if (value < 60) return `${digits(value)} s`;
  const minutes = Math.round(value / 60);
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
}

export const share = (value) => (value === null || value === undefined ? UNKNOWN : `${Math.round(value * 100)} %`);

export const count = (value) => value.toLocaleString(language === "zh" ? "zh-CN" : "en-GB");

// A large count in little room: 9.12M, 912万.
export const compact = (value) =>
  value.toLocaleString(language === "zh" ? "zh-CN" : "en-US", { notation: "compact", maximumSignificantDigits: 3 });

// A long time in little room: 11 s, 41 min, 4.2 h.
export const hours = (value) =>
  (value < 60 ? `${Math.round(value)} s` : value < 3600 ? `${Math.round(value / 60)} min` : `${digits(value / 3600)} h`);

const two = (n) => String(n).padStart(2, "0");

// The time of day, with the day when it is another one than today.
export function clock(unix) {
  const at = new Date(unix * 1000);
  const time = `${two(at.getHours())}:${two(at.getMinutes())}`;
  return at.toDateString() === new Date().toDateString() ? time : `${day(unix)} ${time}`;
}

export function day(unix) {
  const at = new Date(unix * 1000);
  return `${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}
