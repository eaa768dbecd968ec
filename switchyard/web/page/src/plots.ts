// Lag, rate and batch time of the active generation, over its last reports.
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { Row } from "./api";
import { make } from "./elements";
import { colour } from "./theme";

const KEPT = 600;
const SERIES = [
  { label: "lag, records", pick: (row: Row) => row.lag },
  { label: "records a second", pick: (row: Row) => row.rowsPerSecond },
  { label: "batch, ms", pick: (row: Row) => row.batchMs },
];

export class Plots {
  private rows: Row[] = [];
  private plots: uPlot[] = [];
  private generation: number | undefined;

  constructor(private readonly place: HTMLElement) {
    new ResizeObserver(() => this.plots.forEach((plot) => plot.setSize(this.size()))).observe(place);
  }

  start(rows: Row[], generation: number | undefined): void {
    this.generation = generation;
    this.rows = [];
    this.add(rows);
  }

  // Of every generation, as a lingering one reports too; only the active one is drawn.
  add(rows: Row[]): void {
    const mine = rows.filter((row) => row.generation === this.generation);
    const byTime = new Map([...this.rows, ...mine].map((row) => [String(row.at), row]));
    this.rows = [...byTime.values()].sort((a, b) => String(a.at).localeCompare(String(b.at))).slice(-KEPT);
    this.draw();
  }

  restyle(): void {
    this.plots.forEach((plot) => plot.destroy());
    this.plots = [];
    this.draw();
  }

  private draw(): void {
    const times = this.rows.map((row) => Date.parse(String(row.at)) / 1000);
    const data = SERIES.map((series) => [times, this.rows.map((row) => series.pick(row) as number | null)] as uPlot.AlignedData);
    if (this.plots.length) return this.plots.forEach((plot, index) => plot.setData(data[index]));
    this.place.replaceChildren();
    this.plots = SERIES.map((series, index) => {
      const box = make("div", { class: "plot", role: "img", "aria-label": series.label });
      this.place.append(box);
      return new uPlot(this.options(series.label), data[index], box);
    });
  }

  private options(label: string): uPlot.Options {
    const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 } };
    return {
      ...this.size(),
      title: label,
      legend: { show: false },
      scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), Math.max(1, (high ?? 0) * 1.1)] } },
      axes: [axis, { ...axis, size: 60 }],
      series: [{}, { label, stroke: colour("accent"), width: 1.5, points: { show: false } }],
    };
  }

  private size(): { width: number; height: number } {
    const all = this.place.clientWidth || 900;
    return { width: Math.max(240, all < 700 ? all - 8 : all / 3 - 12), height: 170 };
  }
}
