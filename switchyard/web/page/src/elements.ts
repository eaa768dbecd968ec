// Making elements. Content is always text: what a record says can never become markup.
export function make<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Record<string, string> = {},
  ...content: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...content);
  return element;
}

export function byId(id: string): HTMLElement {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no element ${id}`);
  return found;
}

export function clock(iso: string | number | null | undefined): string {
  if (iso === null || iso === undefined) return "–";
  const moment = new Date(iso);
  const time = moment.toLocaleTimeString([], { hour12: false });
  return moment.toDateString() === new Date().toDateString() ? time : `${moment.toLocaleDateString()} ${time}`;
}

export function duration(ms: number): string {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 120) return `${seconds} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}
