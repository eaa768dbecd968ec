// The control panel: plan, swap, roll back; a command is followed to its outcome.
import { Me, Row, Status, Swap, ask } from "./api";
import { make } from "./elements";

type Planned = { outcome: string; detail: string };
const POLL_MS = 1_000;

export class Control {
  private readonly users = make("input", { name: "usersTopic", list: "topics", autocomplete: "off", maxlength: "249" });
  private readonly accounts = make("input", { name: "accountsTopic", list: "topics", autocomplete: "off", maxlength: "249" });
  private readonly join = make("select", { name: "joinType" });
  private readonly start = make("input", { name: "start", list: "starts", autocomplete: "off", placeholder: "latest" });
  private readonly deadline = make("input", { name: "deadlineSeconds", type: "number", min: "1", placeholder: "what its records need" });
  private readonly topics = make("datalist", { id: "topics" });
  private readonly progressLines = make("ol", { id: "progress-lines", role: "log", "aria-live": "polite" });
  private readonly buttons: HTMLButtonElement[];
  private followed = "";

  constructor(place: HTMLElement, me: Me) {
    for (const name of ["", "left", "inner", "natural", "asof"]) this.join.append(make("option", { value: name }, name || "as it is"));
    const starts = make("datalist", { id: "starts" });
    for (const name of ["latest", "earliest", "resume"]) starts.append(make("option", { value: name }));
    const form = make("form", { class: "control" });
    form.append(
      make("label", {}, "Users topic", this.users), make("label", {}, "Accounts topic", this.accounts),
      make("label", {}, "Join", this.join), make("label", {}, "Start", this.start),
      make("label", {}, "Deadline (s)", this.deadline), this.topics, starts,
    );
    const plan = make("button", { type: "button" }, "Plan");
    const swap = make("button", { type: "submit", class: "primary" }, "Swap");
    const back = make("button", { type: "button" }, "Roll back");
    this.buttons = [plan, swap, back];
    form.append(make("div", { class: "buttons" }, plan, swap, back));
    plan.addEventListener("click", () => void this.plan());
    back.addEventListener("click", () => void this.confirm("Go back to the generation before?", "Roll back", () => this.send("rollback", {})));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.confirm(`Swap to ${this.describe()}?`, "Swap", () => this.send("swap", this.fields()));
    });
    for (const input of [this.users, this.accounts]) input.addEventListener("focus", () => void this.loadTopics());
    place.append(form, this.progressLines);
    if (!me.mayCommand) {
      this.buttons.forEach((button) => (button.disabled = true));
      this.addLine("You may look, but not command: that needs the permission to trigger the DAG switchyard_generation.");
    }
  }

  show(status: Status): void {
    this.users.placeholder = status.usersTopic ?? "";
    this.accounts.placeholder = status.accountsTopic ?? "";
    this.join.options[0].textContent = status.joinType ? `${status.joinType} (as it is)` : "as it is";
  }

  private async loadTopics(): Promise<void> {
    try {
      const { topics } = await ask<{ topics: Record<string, number> }>("topics");
      this.topics.replaceChildren(...Object.keys(topics).sort().map((name) => make("option", { value: name })));
    } catch (error) {
      this.addLine(String((error as Error).message), "bad");
    }
  }

  private fields(): Record<string, string | number> {
    const given = { usersTopic: this.users.value, accountsTopic: this.accounts.value, joinType: this.join.value, start: this.start.value };
    const texts = Object.fromEntries(Object.entries(given).filter(([, value]) => value.trim() !== ""));
    return this.deadline.value ? { ...texts, deadlineSeconds: Number(this.deadline.value) } : texts;
  }

  private describe(): string {
    const fields = Object.entries(this.fields()).map(([name, value]) => `${name} ${value}`);
    return fields.length ? fields.join(", ") : "what is active now (a refresh)";
  }

  private async plan(): Promise<void> {
    this.progressLines.replaceChildren();
    await this.guard(async () => {
      const answer = await ask<Planned>("plan", this.fields());
      this.addLine(`${answer.outcome}: ${answer.detail}`, answer.outcome === "PLANNED" ? "good" : "bad");
    });
  }

  // The frame must not open a dialog of the browser; this one asks once.
  private confirm(question: string, verb: string, act: () => Promise<void>): Promise<void> {
    const yes = make("button", { type: "button", class: "primary" }, verb);
    const no = make("button", { type: "button" }, "Cancel");
    const dialog = make("dialog", { "aria-label": question }, make("p", {}, question), make("div", { class: "buttons" }, yes, no));
    document.body.append(dialog);
    dialog.addEventListener("close", () => dialog.remove());
    no.addEventListener("click", () => dialog.close());
    dialog.showModal();
    return new Promise((resolve) => {
      yes.addEventListener("click", () => {
        dialog.close();
        resolve(act());
      });
    });
  }

  private async send(path: string, body: unknown): Promise<void> {
    this.progressLines.replaceChildren();
    await this.guard(async () => {
      const { swapId } = await ask<{ swapId: string }>(path, body);
      this.addLine(`sent as ${swapId}`);
      this.followed = swapId;
      await this.follow(swapId);
    });
  }

  private async follow(swapId: string): Promise<void> {
    let shown = 0;
    while (this.followed === swapId) {
      const swap = await ask<Swap>(`swaps?id=${encodeURIComponent(swapId)}`).catch(() => null);
      for (const entry of swap?.events.slice(shown) ?? []) this.addLine(sentence(entry), tone(String(entry.event)));
      shown = swap ? swap.events.length : shown;
      if (swap?.outcome) return;
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    }
  }

  private async guard(act: () => Promise<void>): Promise<void> {
    this.buttons.forEach((button) => (button.disabled = true));
    const again = setTimeout(() => this.buttons.forEach((button) => (button.disabled = false)), 3_000);
    try {
      await act();
    } catch (error) {
      this.addLine(error instanceof Error ? error.message : String(error), "bad");
    } finally {
      clearTimeout(again);
      this.buttons.forEach((button) => (button.disabled = false));
    }
  }

  private addLine(line: string, tone = ""): void {
    this.progressLines.append(make("li", { class: tone }, line));
  }
}

function sentence(entry: Row): string {
  const about = entry.generation === null ? "" : ` generation ${entry.generation}`;
  return `${entry.event}${about}${entry.detail ? `: ${entry.detail}` : ""}`;
}

function tone(event: string): string {
  if (event === "APPLIED" || event === "REFRESHED") return "good";
  return event === "REJECTED" || event === "FAILED" ? "bad" : "";
}
