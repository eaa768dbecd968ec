// The stream of changes. It heals by itself and goes on where it was cut off, as each event carries its position.
import { ApiError, Me, ask } from "./api";

export type Listener = (data: any) => void;
const KINDS = ["status", "history", "logs", "control", "progress", "tables", "reset", "trouble"];
const SILENT_MS = 15_000;
const RETRY_MS = 2_000;

export class Stream {
  private source: EventSource | null = null;
  private position = "";
  private heard = Date.now();
  private listeners = new Map<string, Listener[]>();

  constructor(private readonly tell: (state: "live" | "lost" | "expired") => void) {
    setInterval(() => this.watch(), RETRY_MS);
    // An open stream outlives the session: it ends with it, and comes back after the next login.
    addEventListener("expired", () => {
      this.source?.close();
      this.tell("expired");
    });
  }

  on(kind: string, listener: Listener): void {
    this.listeners.set(kind, [...(this.listeners.get(kind) ?? []), listener]);
  }

  open(): void {
    this.source?.close();
    this.heard = Date.now();
    this.source = new EventSource(`api/v1/changes?position=${encodeURIComponent(this.position)}`);
    this.source.onerror = () => this.tell("lost");
    for (const kind of KINDS) {
      this.source.addEventListener(kind, (event) => this.take(kind, event as MessageEvent<string>));
    }
  }

  private take(kind: string, event: MessageEvent<string>): void {
    this.heard = Date.now();
    if (event.lastEventId) this.position = event.lastEventId;
    this.tell("live");
    const data = JSON.parse(event.data);
    for (const listener of this.listeners.get(kind) ?? []) listener(data);
  }

  // A browser gives up for good on an answer that is not a stream, and never notices a silent one.
  private async watch(): Promise<void> {
    const isClosed = this.source?.readyState === EventSource.CLOSED;
    if (!isClosed && Date.now() - this.heard < SILENT_MS) return;
    try {
      await ask<Me>("me");
      this.open();
    } catch (error) {
      this.tell(error instanceof ApiError && [401, 403].includes(error.status) ? "expired" : "lost");
    }
  }
}
