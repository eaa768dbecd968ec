"""What was measured, as a table, as plots and as the generated parts of docs/performance.md. Pure."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from bench.measure import Figure

Document = Mapping[str, Any]
WIDTH, LABEL, VALUE, BAR, GAP, SPACE = 800, 300, 130, 13, 3, 14
OURS_MET, OURS_MISSED, BASELINE, TEXT = "#2a7f4f", "#c2571a", "#9aa5b1", "#1f2933"
IMAGES = "images"


def figures_of(bench: Document) -> list[Figure]:
    names = Figure.__dataclass_fields__
    return [Figure(**{name: value for name, value in one.items() if name in names}) for one in bench["figures"]]


def show_number(value: float) -> str:
    """Return the digits that count: 25,300, 2,048, 345, 12.3, 0.45."""
    if value >= 10_000:
        return f"{round(value, -2):,.0f}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def show_target(figure: Figure) -> str:
    return f"{'≤' if figure.wanted == 'at most' else '≥'} {figure.target:g} ×"


def make_table(benches: Mapping[str, Document]) -> str:
    lines = [
        "| figure | reached | baseline in the same run | ratio | target | |",
        "|---|---|---|---|---|---|",
    ]
    for bench in benches.values():
        for figure in figures_of(bench):
            cells = [
                figure.name,
                f"{show_number(figure.ours)} {figure.unit}",
                f"{show_number(figure.baseline)} {figure.unit}: {figure.against}",
                f"{figure.ratio:.2f} ×",
                show_target(figure),
                "met" if figure.is_met else "**missed**",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw_plot(figures: Sequence[Figure]) -> str:
    """Two bars for each figure, ours and its baseline, and a line at the target; one scale for each unit."""
    longest: dict[str, float] = {}
    for figure in figures:
        values = figure.ours, figure.baseline, figure.baseline * figure.target
        longest[figure.unit] = max(longest.get(figure.unit, 0.0), *values)
    parts, top = [], SPACE
    for figure in figures:
        scale = (WIDTH - LABEL - VALUE) / longest[figure.unit]
        parts += _draw_bars(figure, top, scale)
        top += 2 * BAR + GAP + SPACE
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}" viewBox="0 0 {WIDTH} {top}"'
            ' font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{top}" fill="#ffffff"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _draw_bars(figure: Figure, top: int, scale: float) -> list[str]:
    colour = OURS_MET if figure.is_met else OURS_MISSED
    middle, second = top + BAR + GAP // 2, top + BAR + GAP
    goal = LABEL + figure.baseline * figure.target * scale
    return [
        f'<text x="{LABEL - 8}" y="{middle + 4}" text-anchor="end" fill="{TEXT}">{html.escape(figure.name)}</text>',
        *_draw_bar(figure.ours, figure.unit, top, scale, colour),
        *_draw_bar(figure.baseline, figure.unit, second, scale, BASELINE),
        f'<line x1="{goal:.1f}" y1="{top - 3}" x2="{goal:.1f}" y2="{second + BAR + 3}" stroke="{TEXT}"'
        ' stroke-dasharray="3 2"/>',
    ]


def _draw_bar(value: float, unit: str, top: int, scale: float, colour: str) -> list[str]:
    width, label = max(1.0, value * scale), f"{show_number(value)} {html.escape(unit)}"
    return [
        f'<rect x="{LABEL}" y="{top}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>',
        f'<text x="{LABEL + width + 5:.1f}" y="{top + 11}" fill="{TEXT}">{label}</text>',
    ]


def image_name(bench: str) -> str:
    return f"bench-{bench}.svg"


def make_part(name: str, bench: Document) -> str:
    """Return the generated part of a bench's section: its plot, and what else was seen."""
    facts = list_facts(bench["facts"])
    lines = [f"![{name}: ours above, the baseline in grey, the target dashed]({IMAGES}/{image_name(name)})"]
    took = f"Took {bench['seconds'] / 60:.1f} minutes" if bench["seconds"] else "Measured in passing"
    commit = f", with commit {bench['commit']}" if bench["commit"] else ""
    stolen = f" Others took {bench['stolen']:.0%} of the processor time." if bench["stolen"] is not None else ""
    took = f"{took} on {bench['measuredAt'][:10]}{commit}.{stolen}"
    return "\n\n".join(filter(None, [*lines, facts, took]))


def list_facts(facts: Mapping[str, object]) -> str:
    """One line for all plain facts, one for each subject of several (`flip` of `flip, cold`), one for a long value."""
    subjects = Counter(label.partition(", ")[0] for label in facts)
    lines: dict[str, list[str]] = {}
    for label, value in facts.items():
        subject, _, rest = label.partition(", ")
        if "," in str(value):
            lines[label] = [str(value)]
        elif subjects[subject] > 1:
            lines.setdefault(subject, []).append(f"{rest}: {value}")
        else:
            lines.setdefault("", []).append(f"{label}: {value}")
    return "\n".join(f"- {subject and subject + ': '}{'; '.join(said)}" for subject, said in lines.items())


def describe_machine(document: Document) -> str:
    machine, moments = document["machine"], {bench["measuredAt"] for bench in document["benches"].values()}
    runs = "one run" if len(moments) == 1 else f"{len(moments)} runs, which each part below names"
    return (
        f"Measured on {max(moments)[:10]} in {document['minutes']:.0f} minutes, in {runs}: {machine['cores']} cores, "
        f"{machine['memoryGib']} GiB, {machine['system']}, Python {machine['python']}, Java {machine['java']}, "
        f"Spark {machine['spark']}."
    )


def splice(page: str, name: str, text: str) -> str:
    """Put text between the markers of a name; all else stays."""
    begin, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if len(pattern.findall(page)) != 1:
        raise ValueError(f"the page must have {begin} and {end} once, in this order")
    return pattern.sub(lambda _: f"{begin}\n\n{text}\n\n{end}", page)


def fill_page(page: str, document: Document) -> str:
    """Return the page with all figures that are known; before the first measurement it stays as it is."""
    if not document["benches"]:
        return page
    page = splice(page, "machine", describe_machine(document))
    page = splice(page, "table", make_table(document["benches"]))
    for name, bench in document["benches"].items():
        page = splice(page, name, make_part(name, bench))
    return page
