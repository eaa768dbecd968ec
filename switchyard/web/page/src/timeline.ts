// Each generation as a bar: built, active, lingering; where it ended, and how.
import { Row } from "./api";
import { clock, duration, make } from "./elements";
import { openInAirflow } from "./theme";

type Part = { kind: "building" | "active" | "lingering"; from: number; to: number | null };
type Life = { generation: number; parts: Part[]; end: string; detail: string; requests: string[]; run: string };
const SHOWN = 12;
const ENDS = ["RETIRED", "FAILED", "SUPERSEDED"];

export function livesOf(history: Row[]): Life[] {
  const lives = new Map<number, Life>();
  for (const entry of [...history].sort((a, b) => String(a.at).localeCompare(String(b.at)))) {
    if (entry.generation === null || entry.event === "PLANNED" || entry.event === "REFRESHED") continue;
    const generation = Number(entry.generation);
    const life = lives.get(generation) ?? { generation, parts: [], end: "", detail: "", requests: [], run: "" };
    lives.set(generation, life);
    noteRun(life, entry);
    step(life, String(entry.event), Date.parse(String(entry.at)));
    if (entry.joinType) life.detail = `${entry.usersTopic} ⋈ ${entry.accountsTopic}, ${entry.joinType}`;
    if (entry.event === "FAILED") life.detail = `${life.detail}; failed: ${entry.detail}`;
  }
  return [...lives.values()].slice(-SHOWN);
}

// Runs are named by the run that was started by hand, or as the nth request for the generation; one that got no driver has none.
function noteRun(life: Life, entry: Row): void {
  const [swapId, event] = [String(entry.swapId), String(entry.event)];
  const path = (dag: string, run: string) => `/dags/${dag}/runs/${encodeURIComponent(run)}`;
  if (swapId.startsWith("backfill-")) life.run = path("switchyard_backfill", swapId.slice("backfill-".length));
  if (/^(backfill|publish)-/.test(swapId)) return;
  if (event === "REQUESTED") life.requests.push(swapId);
  if (event !== "STARTING") return;
  const nth = life.requests.indexOf(swapId) + 1;
  const isHosted = swapId.startsWith("run:") && String(entry.requestedBy).startsWith("airflow:");
  life.run = path("switchyard_generation", isHosted ? swapId.slice("run:".length) : `generation-${life.generation}${nth > 1 ? `.${nth}` : ""}`);
}

function step(life: Life, event: string, at: number): void {
  const last = life.parts[life.parts.length - 1];
  const begin = (kind: Part["kind"]) => {
    if (last && last.to === null) last.to = at;
    life.parts.push({ kind, from: at, to: null });
    life.end = "";
  };
  if (event === "REQUESTED" && last?.kind !== "lingering") begin("building");
  else if (event === "APPLIED") begin("active");
  else if (event === "LINGERING") begin("lingering");
  else if (ENDS.includes(event) && last && last.to === null && !(event === "SUPERSEDED" && last.kind !== "building")) {
    last.to = at;
    life.end = event;
  }
}

// A bar that somebody points at or has moved to stays under the pointer and keeps the focus.
export function redrawTimeline(place: HTMLElement, history: Row[]): void {
  if (!place.matches(":hover, :focus-within")) drawTimeline(place, history);
}

export function drawTimeline(place: HTMLElement, history: Row[]): void {
  const lives = livesOf(history);
  const now = Date.now();
  const first = Math.min(...lives.map((life) => life.parts[0]?.from ?? now), now - 60_000);
  const share = (at: number) => (100 * (at - first)) / (now - first);
  const rows = lives.map((life) => {
    const bar = make("button", { type: "button", class: "life", title: describe(life), "aria-label": describe(life) });
    for (const part of life.parts) {
      const left = share(part.from);
      const width = Math.max(0.6, share(part.to ?? now) - left);
      bar.append(make("span", { class: `part ${part.kind} ${life.end === "FAILED" ? "failed" : ""}`, style: `left:${left}%;width:${width}%` }));
    }
    if (life.run) bar.addEventListener("click", () => openInAirflow(life.run));
    return make("div", { class: "row" }, make("span", { class: "number" }, String(life.generation)), bar);
  });
  const axis = make("div", { class: "axis" }, make("span", {}, clock(first)), make("span", {}, "now"));
  const legend = make("p", { class: "legend" });
  for (const kind of ["building", "active", "lingering", "failed"]) legend.append(make("span", { class: `key ${kind}` }), ` ${kind} `);
  place.replaceChildren(...rows, axis, legend);
}

function describe(life: Life): string {
  const parts = life.parts.map((part) => `${part.kind} from ${clock(part.from)} for ${duration((part.to ?? Date.now()) - part.from)}`);
  return [`generation ${life.generation}`, life.detail, ...parts, life.end.toLowerCase(), life.run && "click for its run in Airflow"].filter(Boolean).join("\n");
}
