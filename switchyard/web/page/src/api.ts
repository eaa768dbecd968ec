// The API of this page. Paths are relative: the page works below any prefix.
export type Row = Record<string, string | number | null>;
export type Column = { name: string; type: "text" | "number" | "time"; holdsAddresses: boolean };
export type Page = { rows: Row[]; total: number; version: number; generation: number | null };
export type Me = { name: string; mayCommand: boolean; seesAddresses: boolean };
export type Swap = { swapId: string; events: Row[]; outcome: string | null; detail: string };
export type PendingSwap = { swapId: string; generation: number; event: string; joinType: string };
export type Status = {
  healthy: boolean;
  reason: string;
  generation?: number;
  usersTopic?: string;
  accountsTopic?: string;
  joinType?: string;
  lastApplied?: string;
  lag?: number | null;
  rowsPerSecond?: number;
  rowsPerEvent?: number | null;
  warnings?: string[];
  heartbeatAgeSeconds?: number | null;
  lingering?: number[];
  retires?: { generation: number; at: string | null }[];
  swapping?: PendingSwap | null;
};

export class ApiError extends Error {
  constructor(readonly status: number, message: string) {
    super(message);
  }
}

export async function ask<T>(path: string, body?: unknown): Promise<T> {
  const sent = body === undefined ? {} : { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
  const answer = await fetch(`api/v1/${path}`, { ...sent, credentials: "same-origin" });
  const document = await answer.json().catch(() => ({}));
  if (answer.status === 401) dispatchEvent(new Event("expired"));
  if (!answer.ok) {
    const detail = typeof document.detail === "string" ? document.detail : `the server answered ${answer.status}`;
    throw new ApiError(answer.status, detail);
  }
  return document as T;
}

export function tablePath(name: string, options: { filters?: string[]; quick?: string; sort?: string; offset?: number; limit?: number }): string {
  const query = new URLSearchParams();
  for (const filter of options.filters ?? []) query.append("filter", filter);
  if (options.quick) query.set("quick", options.quick);
  if (options.sort) query.set("sort", options.sort);
  query.set("offset", String(options.offset ?? 0));
  query.set("limit", String(options.limit ?? 100));
  return `tables/${name}?${query}`;
}
