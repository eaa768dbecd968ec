// The stream of changes. It reconnects by itself and goes on where it was cut off, as its events carry a position.
import { ApiError, Me, Row, Status, ask } from "./api";

type NewRows = { rows: Row[] };
// The one document that each event carries; EVENTS in documents.py has the same.
type Documents = {
  status: Status;
  statusRow: NewRows;
  history: NewRows;
  logs: NewRows;
  control: NewRows;
  progress: NewRows;
  tables: { generation: number | null; versions: Record<string, number> };
  reset: Record<string, never>;
  trouble: { detail: string };
};
type Name = keyof Documents;
const NAMES: Name[] = ["status", "statusRow", "history", "logs", "control", "progress", "tables", "reset", "trouble"];
const SILENT_MS = 15_000;
const RETRY_MS = 2_000;

export class Stream {
  private source: EventSource | null = null;
  private position = "";
  private heard = Date.now();
  private listeners = new Map<Name, (document: any) => void>();

  constructor(private readonly onState: (state: "live" | "lost" | "expired") => void) {
    setInterval(() => this.watch(), RETRY_MS);
    // An open stream outlives the session: it ends with it, and comes back after the next login.
    addEventListener("expired", () => {
      this.source?.close();
      this.onState("expired");
    });
  }

  on<N extends Name>(name: N, listener: (document: Documents[N]) => void): void {
    this.listeners.set(name, listener);
  }

  open(): void {
    this.source?.close();
    this.heard = Date.now();
    this.source = new EventSource(`api/v1/changes?position=${encodeURIComponent(this.position)}`);
    this.source.onerror = () => this.onState("lost");
    for (const name of NAMES) {
      this.source.addEventListener(name, (event) => this.take(name, event as MessageEvent<string>));
    }
  }

  private take(name: Name, event: MessageEvent<string>): void {
    this.heard = Date.now();
    if (event.lastEventId) this.position = event.lastEventId;
    this.onState("live");
    this.listeners.get(name)?.(JSON.parse(event.data));
  }

  // A browser gives up for good on an answer that is not a stream, and never notices a silent one.
  private async watch(): Promise<void> {
    const isClosed = this.source?.readyState === EventSource.CLOSED;
    if (!isClosed && Date.now() - this.heard < SILENT_MS) return;
    try {
      await ask<Me>("me");
      this.open();
    } catch (error) {
      this.onState(error instanceof ApiError && [401, 403].includes(error.status) ? "expired" : "lost");
    }
  }
}
