// One live grid over a stable name: the server filters, sorts and cuts pages; the grid asks again when rows have come.
import { ColDef, GridApi, GridOptions, IDatasource, IGetRowsParams, createGrid, themeQuartz } from "ag-grid-community";
import { Column, Page, Row, ask, tablePath } from "./api";
import { make } from "./elements";

const OPERATORS: Record<string, string> = {
  contains: "contains", notContains: "notContains", startsWith: "startsWith", endsWith: "endsWith",
  equals: "eq", notEqual: "ne", lessThan: "lt", lessThanOrEqual: "le", greaterThan: "gt", greaterThanOrEqual: "ge",
  blank: "blank", notBlank: "notBlank",
};
const FILTERS: Record<Column["type"], ColDef> = {
  text: {
    filter: "agTextColumnFilter",
    filterParams: { filterOptions: ["contains", "notContains", "startsWith", "endsWith", "equals", "notEqual", "blank", "notBlank"] },
  },
  number: {
    filter: "agNumberColumnFilter",
    filterParams: { filterOptions: ["equals", "notEqual", "lessThan", "lessThanOrEqual", "greaterThan", "greaterThanOrEqual", "blank", "notBlank"] },
  },
  time: { filter: "agDateColumnFilter", filterParams: { filterOptions: ["greaterThan", "lessThan", "blank", "notBlank"] } },
};
const PACE_MS = 500;
const POLL_MS = 100;
const WINDOWS = [1_000, 5_000, 10_000];
const theme = themeQuartz
  .withParams({ fontSize: 13, spacing: 5, headerFontSize: 12 })
  .withParams({ backgroundColor: "#ffffff", foregroundColor: "#1a202c", accentColor: "#017cee", browserColorScheme: "light" }, "light")
  .withParams({ backgroundColor: "#18181b", foregroundColor: "#e4e4e7", accentColor: "#4aa8ff", browserColorScheme: "dark" }, "dark");

export class LiveGrid {
  private readonly grid: GridApi<Row>;
  private readonly note = make("span", { class: "note", role: "status" });
  private readonly known = new Set<string>();
  private fresh = new Set<string>();
  private isFirst = true;
  private isPaused = false;
  private isDue = false;
  private last = 0;
  private quick = "";
  private window = WINDOWS[0];
  generation: number | null = null;

  constructor(place: HTMLElement, private readonly name: string, private readonly columns: Column[], seesAddresses: boolean, height = 330) {
    const box = make("div", { class: "grid", style: `height:${height}px` });
    place.append(this.makeBar(), box);
    this.grid = createGrid(box, this.options(seesAddresses));
    setInterval(() => this.refreshIfDue(), POLL_MS);
  }

  // New rows are there: shown soon, but not more often than a person can read.
  changed(): void {
    this.isDue = true;
  }

  private options(seesAddresses: boolean): GridOptions<Row> {
    return {
      theme,
      columnDefs: this.columns.map((column) => this.define(column, seesAddresses)),
      defaultColDef: { sortable: true, resizable: true, minWidth: 80, filterParams: { maxNumConditions: 1 } },
      rowModelType: "infinite",
      datasource: this.source(),
      cacheBlockSize: 100,
      maxBlocksInCache: 4,
      pagination: true,
      paginationPageSize: 100,
      paginationPageSizeSelector: [50, 100, 500],
      getRowId: (row) => this.identify(row.data),
      rowClassRules: { fresh: (row) => row.data !== undefined && this.fresh.has(this.identify(row.data)) },
      suppressCellFocus: false,
      enableCellTextSelection: true,
      overlayNoRowsTemplate: "no rows",
      tooltipShowDelay: 300,
      onFirstDataRendered: (event) => event.api.autoSizeAllColumns(),
    };
  }

  private define(column: Column, seesAddresses: boolean): ColDef<Row> {
    const isHidden = column.holdsAddresses && !seesAddresses;
    const base: ColDef<Row> = { field: column.name, headerName: column.name, tooltipField: column.name, ...FILTERS[column.type] };
    base.filterParams = { ...base.filterParams, maxNumConditions: 1, debounceMs: 400, buttons: ["reset"] };
    if (column.type === "number") base.type = "rightAligned";
    if (column.type === "time") base.valueFormatter = ({ value }) => (value ? String(value).replace("T", " ").replace(/(\.\d{3})\d*Z$|Z$/, "$1") : "");
    return isHidden ? { ...base, sortable: false, filter: false } : base;
  }

  private makeBar(): HTMLElement {
    const quick = make("input", { type: "search", placeholder: "quick filter", "aria-label": `quick filter of ${this.name}`, maxlength: "200" });
    let timer = 0;
    quick.addEventListener("input", () => {
      clearTimeout(timer);
      timer = window.setTimeout(() => {
        this.quick = quick.value;
        this.reload();
      }, 300);
    });
    const pause = make("button", { type: "button", "aria-pressed": "false" }, "Pause");
    pause.addEventListener("click", () => {
      this.isPaused = !this.isPaused;
      pause.textContent = this.isPaused ? "Resume" : "Pause";
      pause.setAttribute("aria-pressed", String(this.isPaused));
    });
    const size = make("select", { "aria-label": `window of ${this.name}` });
    for (const rows of WINDOWS) size.append(make("option", { value: String(rows) }, `${rows.toLocaleString("en")} rows`));
    size.addEventListener("change", () => {
      this.window = Number(size.value);
      this.reload();
    });
    return make("div", { class: "bar" }, quick, pause, size, this.note);
  }

  private reload(): void {
    this.isFirst = true;
    this.grid.purgeInfiniteCache();
  }

  private refreshIfDue(): void {
    const isHidden = document.visibilityState === "hidden";
    if (!this.isDue || this.isPaused || isHidden || Date.now() - this.last < PACE_MS) return;
    this.isDue = false;
    this.last = Date.now();
    this.grid.refreshInfiniteCache();
  }

  private source(): IDatasource {
    return { getRows: (params) => void this.fetch(params) };
  }

  private async fetch(params: IGetRowsParams): Promise<void> {
    const limit = Math.min(params.endRow, this.window) - params.startRow;
    if (limit <= 0) return params.successCallback([], this.window);
    const options = { filters: filtersOf(params.filterModel), quick: this.quick, sort: sortOf(params.sortModel), offset: params.startRow, limit };
    try {
      const page = await ask<Page>(tablePath(this.name, options));
      this.highlightNew(page.rows, page.generation);
      this.say(page.total);
      params.successCallback(page.rows, Math.min(page.total, this.window));
    } catch (error) {
      this.note.textContent = error instanceof Error ? error.message : String(error);
      this.isDue = true;
      this.last = Date.now();
      params.failCallback();
    }
  }

  private highlightNew(rows: Row[], generation: number | null): void {
    const ids = rows.map((row) => this.identify(row));
    const isNews = !this.isFirst && generation === this.generation;
    this.fresh = new Set(isNews ? ids.filter((id) => !this.known.has(id)) : []);
    if (this.known.size > 50_000) this.known.clear();
    for (const id of ids) this.known.add(id);
    this.isFirst = false;
    this.generation = generation;
  }

  private say(total: number): void {
    const shown = Math.min(total, this.window).toLocaleString("en");
    this.note.textContent = total > this.window ? `first ${shown} of ${total.toLocaleString("en")} rows` : `${shown} ${total === 1 ? "row" : "rows"}`;
  }

  // Rejects and control messages come from several topics, and a topic that was created again has the same offsets.
  private identify(row: Row): string {
    const places = this.columns.filter((column) => /(partition|offset)$/i.test(column.name));
    const key = places.length ? ["generation", "topic", "ts", ...places.map((column) => column.name)] : this.columns.map((column) => column.name);
    return key.map((name) => row[name] ?? "").join("|");
  }
}

function sortOf(model: { colId: string; sort: string }[]): string {
  return model.map((item) => (item.sort === "desc" ? "-" : "") + item.colId).join(",");
}

function filtersOf(model: Record<string, any>): string[] {
  return Object.entries(model).map(([column, filter]) => {
    const given = filter.filterType === "date" ? new Date(String(filter.dateFrom).replace(" ", "T")) : filter.filter;
    const value = given instanceof Date ? (isNaN(given.getTime()) ? "" : given.toISOString()) : given;
    return `${column}:${OPERATORS[filter.type]}:${value ?? ""}`;
  });
}
