"""A prediction as numbers, as bars in the terminal, and as an SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lodger.capacity.prediction import Option, Prediction
from lodger.capacity.subject import Subject

_COLOURS = {
    "neighbours": "#8c564b", "driver": "#7f7f7f", "weights": "#1f77b4", "draft": "#17becf", "KV cache": "#2ca02c",
    "states": "#bcbd22", "draft states": "#dbdb8d", "images": "#9467bd", "graphs": "#ff7f0e", "workspace": "#ffbb78",
    "activations": "#d62728", "free": "#dddddd",
}  # fmt: skip
_WIDTH = 60  # characters of a bar


def _colour(part: str) -> str:
    return _COLOURS.get(part, "#e377c2")


def as_json(name: str, about: Subject, predicted: Prediction, options: Sequence[Option]) -> dict[str, Any]:
    """Return one worker's prediction as JSON; sizes in MiB."""
    return {
        "worker": name,
        "tp": about.tp,
        "gpu_memory_mib": about.gpu.memory,
        "parts_mib": {part: round(mib) for part, mib in predicted.parts},
        "requests_at_once": predicted.running,
        "requests_admitted": about.most().running,
        "kv_tokens": predicted.tokens,
        "kv_bytes_per_token": predicted.token_bytes,
        "longest_request_tokens": predicted.longest,
        "state_slots": predicted.state_slots,
        "state_slots_per_request": predicted.state_slots_per_request,
        "state_bytes_per_slot": predicted.state_slot_bytes,
        "correction_mib": about.correction,
        "reconstructed": about.target.reconstructed or bool(about.drafter and about.drafter.reconstructed),
        "options": [option.__dict__ for option in options],
    }


def show(console: Console, title: str, about: Subject, predicted: Prediction, options: Sequence[Option]) -> None:
    """Print one worker's prediction: a bar, what it is made of, what it admits, what to change to get more."""
    parts = [(name, mib) for name, mib in predicted.parts if mib > 0]
    console.print(Text(f"{title}: each of {about.tp} GPUs of {about.gpu.memory / 1024:.0f} GiB", style="bold"))
    bar = Text()
    for (name, _), cells in zip(parts, _cells([mib for _, mib in parts]), strict=True):
        bar.append("█" * cells, style=_colour(name))
    console.print(bar)
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, mib in parts:
        table.add_row(
            Text(f"█ {name}", style=_colour(name)), Text(f"{mib:,.0f} MiB", justify="right"), f"{mib / about.gpu.memory:.0%}"
        )
    console.print(table)
    if predicted.spare < 0:
        console.print(
            f"{-predicted.spare:,.0f} MiB are missing: a long prompt would end in an out-of-memory error", style="bold red"
        )
    for line in facts(about, predicted):
        console.print(line, highlight=False)
    if options:
        more = Table(box=None, padding=(0, 2, 0, 0))
        for heading in ("change", "requests", "KV tokens", "price"):
            more.add_column(heading, justify="right" if heading in {"requests", "KV tokens"} else "left")
        for option in options:
            more.add_row(option.change, str(option.running), f"{option.tokens:,}", option.price)
        console.print(more)
    else:
        console.print("no other settings give more and keep what is declared")


def facts(about: Subject, predicted: Prediction) -> list[str]:
    """Return what the memory admits, in sentences."""
    admitted = about.most().running
    lines = [f"{predicted.running} requests at once ({predicted.asked} declared, {admitted} admitted)"]
    if slots := predicted.state_slots:
        size = predicted.state_slot_bytes / 2**20
        lines[0] += f": {slots} state slots of {size:.2f} MiB, {predicted.state_slots_per_request} a request"
    per_token = predicted.token_bytes / 1024
    lines.append(
        f"{predicted.tokens:,} tokens of KV cache, {per_token:.1f} KiB each; one request may have {predicted.longest:,}"
    )
    if about.correction:
        lines.append(f"corrected by {about.correction:+,.0f} MiB that a running engine reported")
    if about.target.reconstructed:
        lines.append("the model's files are reconstructed from public figures; the published ones come with the weights")
    return lines


def _cells(sizes: Sequence[float]) -> list[int]:
    """Share out the cells of a bar so that they add up to its width whatever is rounded."""
    total, done, cells = sum(sizes), 0.0, []
    for size in sizes:
        cells.append(round((done + size) / total * _WIDTH) - round(done / total * _WIDTH))
        done += size
    return cells


def svg(workers: Sequence[tuple[str, Prediction]]) -> str:
    """Return one bar a worker, with a legend, as an SVG."""
    width, left, height = 960, 130, 46
    lines: list[str] = []
    for row, (title, predicted) in enumerate(workers):
        y, x = 20 + row * height, float(left)
        lines.append(f'<text x="10" y="{y + 17}">{escape(title)}</text>')
        scale = (width - left - 20) / predicted.gpu.memory
        for name, mib in predicted.parts:
            if mib <= 0:
                continue
            lines.append(
                f'<rect x="{x:.1f}" y="{y}" width="{mib * scale:.1f}" height="26" fill="{_colour(name)}">'
                f"<title>{name}: {mib:,.0f} MiB</title></rect>"
            )
            x += mib * scale
    bottom = 30 + len(workers) * height
    for index, (name, mib) in enumerate(part for _, predicted in workers[:1] for part in predicted.parts):
        x, y = 20 + index % 6 * 155, bottom + index // 6 * 22
        lines.append(f'<rect x="{x:.0f}" y="{y}" width="12" height="12" fill="{_colour(name)}"/>')
        lines.append(f'<text x="{x + 18:.0f}" y="{y + 11}">{name} {mib / 1024:.2f} GiB</text>')
    body = "\n".join(lines)
    view = f'viewBox="0 0 {width} {bottom + 50}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {view} font-family="sans-serif" font-size="13">\n'
        f"<title>Memory of each GPU; the legend's figures are of the first worker</title>\n{body}\n</svg>\n"
    )
