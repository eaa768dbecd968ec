// Puts the parts of the page together and hands them what the stream brings.
import { AllCommunityModule, ModuleRegistry } from "ag-grid-community";
import "./page.css";
import { Column, Me, Page, Row, Status, ask, tablePath } from "./api";
import { Control } from "./control";
import { byId, clock, make } from "./elements";
import { LiveGrid } from "./grid";
import { Plots } from "./plots";
import { Stream } from "./stream";
import { followTheme } from "./theme";
import { drawTimeline, redrawTimeline } from "./timeline";

const LIVE = ["final_ui", "users_ui", "accounts_ui", "rejects_ui"];
const SMALL = ["swap_history", "orchestrator_status", "control_raw"];
const HEIGHTS: Record<string, number> = { orchestrator_status: 150, control_raw: 240, rejects_ui: 240 };
const LOG_LINES = 500;
const STATES = {
  live: "live",
  lost: "connection lost, trying again",
  expired: "your session has ended: log in again, and this page goes on",
};

ModuleRegistry.registerModules([AllCommunityModule]);

function showStatus(status: Status): void {
  const facts: [string, string, string?][] = [
    ["generation", status.generation === undefined ? "none yet" : String(status.generation)],
    ["users", status.usersTopic ?? "–"],
    ["accounts", status.accountsTopic ?? "–"],
    ["join", status.joinType ?? "–"],
    ["since", clock(status.lastApplied)],
    ["lag", status.lag === null || status.lag === undefined ? "–" : status.lag.toLocaleString("en")],
    ["events/s", status.rowsPerSecond === undefined ? "–" : String(status.rowsPerSecond)],
    ["rows/event", status.rowsPerEvent === null || status.rowsPerEvent === undefined ? "–" : String(status.rowsPerEvent), status.warnings?.length ? "bad" : ""],
    ["health", status.healthy ? "healthy" : status.reason, status.healthy ? "good" : "bad"],
  ];
  status.warnings?.forEach((warning) => facts.push(["warning", warning, "bad"]));
  if (status.swapping) facts.push(["swap", `building generation ${status.swapping.generation}: ${status.swapping.event.toLowerCase()}`]);
  const lingering = status.retires?.map(({ generation, at }) => `${generation} ${at === null ? "for good" : `until ${clock(at)}`}`);
  if (lingering?.length) facts.push(["lingering", lingering.join(", ")]);
  byId("facts").replaceChildren(
    ...facts.map(([name, value, tone]) => make("span", { class: "fact", "data-fact": name }, make("small", {}, name), make("b", { class: tone ?? "" }, value))),
  );
}

function addLog(rows: Row[]): void {
  const log = byId("log");
  const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  for (const row of rows) {
    const about = row.generation === null ? "" : `g${row.generation} `;
    log.append(make("li", { class: String(row.level).toLowerCase() }, make("time", {}, clock(row.ts)), ` ${about}${row.msg}`));
  }
  while (log.children.length > LOG_LINES) log.firstElementChild?.remove();
  if (isAtEnd) log.scrollTop = log.scrollHeight;
}

async function newest(name: string, limit: number): Promise<Row[]> {
  return (await ask<Page>(tablePath(name, { limit }))).rows.reverse();
}

async function start(): Promise<void> {
  const plots = new Plots(byId("plots"));
  followTheme(() => plots.restyle());
  const [me, tables] = await Promise.all([ask<Me>("me"), ask<{ name: string; columns: Column[] }[]>("tables")]);
  const columns = (name: string) => tables.find((table) => table.name === name)?.columns ?? [];
  const grids = new Map(
    [...LIVE, ...SMALL].map((name) => [name, new LiveGrid(byId(name), name, columns(name), me.seesAddresses, HEIGHTS[name])]),
  );
  const control = new Control(byId("control"), me);
  let history: Row[] = [];
  let generation: number | undefined;

  const load = async () => {
    history = await newest("swap_history", 1000);
    byId("log").replaceChildren();
    addLog(await newest("orchestrator_logs", 200));
    drawTimeline(byId("timeline"), history);
    plots.start(await newest("progress", 600), generation);
    grids.forEach((grid) => grid.changed());
  };

  const stream = new Stream((state) => {
    byId("connection").textContent = STATES[state];
    byId("connection").className = state;
  });
  stream.on("statusRow", () => grids.get("orchestrator_status")?.changed());
  stream.on("status", (status) => {
    showStatus(status);
    control.show(status);
    if (status.generation !== generation) void flip(status.generation);
  });
  stream.on("tables", () => LIVE.forEach((name) => grids.get(name)?.changed()));
  stream.on("progress", ({ rows }) => plots.add(rows));
  stream.on("logs", ({ rows }) => addLog(rows));
  stream.on("history", ({ rows }) => {
    history = [...history, ...rows].slice(-2000);
    drawTimeline(byId("timeline"), history);
    grids.get("swap_history")?.changed();
  });
  stream.on("control", () => grids.get("control_raw")?.changed());
  stream.on("reset", () => void load());

  async function flip(to: number | undefined): Promise<void> {
    const isFirst = generation === undefined;
    generation = to;
    LIVE.forEach((name) => grids.get(name)?.changed());
    if (!isFirst) {
      byId("flip").hidden = false;
      byId("flip").textContent = `now generation ${to}`;
    }
    plots.start(await newest("progress", 600), generation);
  }

  setInterval(() => redrawTimeline(byId("timeline"), history), 5_000);
  const status = await ask<Status>("status");
  generation = status.generation;
  showStatus(status);
  control.show(status);
  stream.open();
  await load();
}

start().catch((error: Error) => {
  byId("connection").textContent = `the page could not start: ${error.message}; it tries again`;
  setTimeout(() => location.reload(), 5_000);
});
