"""Tables as lines of a given width: which columns are shown, and how long names are cut so that no line wraps."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from .table import Cell, Table

GAP = 3
SHORTEST = 8
"""A column is not made narrower than this: one that would have to be is left out."""
WORDS = (24, 16, 12, SHORTEST)
"""Words of so many columns are kept whole if all columns then fit, else shorter ones."""
LINES = 6
"""A text goes on in so many lines; only a sentence, one of at least `SENTENCE` words, in more."""
SENTENCE = 5
WHOLE = 1e9
"""Numbers below this are written without a power of ten."""
BELOW = "    "
"""What the lines below a row begin with."""
MARKS = re.compile(r"(?<=[,;/._|={(-])(?=[^,;/._|={(-])")
"""Where a word may go on in the next line: behind what joins its parts."""


def format_cell(cell: Cell) -> str:
    """A value as people read it, on one line."""
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:.0f}" if 1e4 <= abs(cell) < WHOLE else f"{cell:.4g}"
    return " ".join(str(cell).split("\n"))


def fit(table: Table, width: int | None, cut: str = "…", rule: str = "─") -> list[str]:
    """The table's header, rule, rows and notes, no line longer than `width` (None: as long as they are); last what was left out."""
    notes = [line for note in table.notes for line in wrap(note, width)]
    if not table.rows:
        return [" none", *notes]
    shown = _shown(table)
    natural = {n: _natural(table, n) for n in shown}
    kept, widths = (shown, natural) if width is None else _choose(table, shown, natural, width - 1)
    below = [n for n in shown if n not in kept and table.columns[n] in table.below]
    names = [name.replace("_", " ") for name in table.columns]
    head = [*_lines([names[n] for n in kept], kept, widths, table, cut), *_under([names[n] for n in below], width, cut)]
    lines = [*head, rule * (sum(widths[n] for n in kept) + GAP * (len(kept) - 1))]
    for row in table.rows:
        lines += _lines([format_cell(row[n]) for n in kept], kept, widths, table, cut)
        lines += _under([format_cell(row[n]) for n in below if row[n] is not None], width, cut)
    left_out = [names[n] for n in shown if n not in (*kept, *below)]
    told = [format_cell(row[n]) for row in table.rows for n in (*kept, *below)]
    shortened = sum(line.count(cut) for line in lines[len(head) :]) > sum(text.count(cut) for text in told)
    lines = [*(f" {line}".rstrip() for line in lines), *notes]
    if left_out:
        lines += wrap(f"(left out for want of room: {', '.join(left_out)}; --wide shows everything, --json too)", width)
    elif shortened:
        lines += wrap("(shortened; --wide shows everything, --json too)", width)
    return lines


def _under(texts: Sequence[str], width: int | None, cut: str) -> list[str]:
    """Texts below a row, each from a line of its own on."""
    return [BELOW + line for text in texts for line in ([text] if width is None else _broken(text, width - 1 - len(BELOW), cut))]


def wrap(text: str, width: int | None) -> list[str]:
    """Lines of at most `width` columns, broken between words; further lines keep the first one's indentation."""
    if width is None or columns_of(text) <= width:
        return [text]
    import textwrap

    indent = text[: len(text) - len(text.lstrip())]
    label = next((label for label in ("note: ", "help: ", "error: ") if text.lstrip().startswith(label)), "")
    further = indent + " " * (len(label) if indent else 2)
    return textwrap.wrap(text, max(width, 20), subsequent_indent=further, break_long_words=False, break_on_hyphens=False)


def columns_of(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _shown(table: Table) -> list[int]:
    """A column that says nothing in any row only takes room; --json has it."""
    return [n for n in range(len(table.columns)) if any(row[n] is not None for row in table.rows)]


def _natural(table: Table, column: int) -> int:
    return max(columns_of(text) for text in (table.columns[column], *(format_cell(row[column]) for row in table.rows)))


def _choose(table: Table, shown: Sequence[int], natural: dict[int, int], room: int) -> tuple[Sequence[int], dict[int, int]]:
    """The columns that fit, all if they do, else those that do not stand below, else the brief ones, else the first of these; with the
    width of each.
    """
    beside = [n for n in shown if table.columns[n] not in table.below]
    brief = sorted((n for n in beside if table.columns[n] in table.brief), key=lambda n: table.brief.index(table.columns[n]))
    for kept in [list(shown), beside, *([sorted(brief)] if brief else [])]:
        if _total(natural, kept) <= room:
            return kept, natural
    first = brief or beside
    while len(first) > 1 and _total(_least(table, natural, first, SHORTEST), first) > room:
        first = first[:-1]
    kept = sorted(first)
    return kept, _shrunk(table, natural, kept, room)


def _total(widths: dict[int, int], kept: Sequence[int]) -> int:
    return sum(widths[n] for n in kept) + GAP * (len(kept) - 1)


def _least(table: Table, natural: dict[int, int], kept: Sequence[int], longest: int) -> dict[int, int]:
    """How narrow the columns may become: numbers and keys are whole, and so are words of up to `longest` columns."""
    return {n: _least_of(table, n, natural[n], longest) for n in kept}


def _least_of(table: Table, column: int, natural: int, longest: int) -> int:
    if table.columns[column] in table.keys:
        return natural
    if _is_numbers(table, column):
        # The name of the column may take several lines.
        words = table.columns[column].split("_")
        return max(columns_of(text) for text in (*words, *(format_cell(row[column]) for row in table.rows)))
    return min(natural, max(SHORTEST, _longest_word(table, column, longest)))


def _longest_word(table: Table, column: int, longest: int) -> int:
    texts = (table.columns[column].replace("_", " "), *(format_cell(row[column]) for row in table.rows))
    return max((columns_of(word) for text in texts for word in text.split() if columns_of(word) <= longest), default=0)


def _shrunk(table: Table, natural: dict[int, int], kept: Sequence[int], room: int) -> dict[int, int]:
    """The widest columns become narrower first, until all fit; words are kept whole as far as that goes."""
    offered = [_least(table, natural, kept, longest) for longest in WORDS]
    least = next((each for each in offered if _total(each, kept) <= room), offered[-1])
    widths = {n: least[n] if _is_numbers(table, n) else natural[n] for n in kept} | {n: w for n, w in natural.items() if n not in kept}
    while _total(widths, kept) > room:
        widest = max((n for n in kept if widths[n] > least[n]), key=lambda n: widths[n], default=None)
        if widest is None:
            break
        widths[widest] -= 1
    return widths


def _is_sentence(text: str) -> bool:
    return len(text.split()) >= SENTENCE


def _lines(texts: Sequence[str], kept: Sequence[int], widths: dict[int, int], table: Table, cut: str) -> list[str]:
    """A row: one line, and more where a text goes on."""
    cells = [_broken(text, widths[n], cut) for text, n in zip(texts, kept, strict=True)]
    height = max(map(len, cells), default=1)
    return [_line([cell[n] if n < len(cell) else "" for cell in cells], kept, widths, table, cut) for n in range(height)]


def _broken(text: str, width: int, cut: str) -> list[str]:
    """A text in lines: between words, else behind a mark in one; what has no such place, or goes on for too long, is cut."""
    if columns_of(text) <= width:
        return [text]
    lines = [""]
    for word in text.split():
        # A word that has room in a line is not broken.
        parts = [word] if columns_of(word) <= width else MARKS.split(word)
        for number, part in enumerate(parts):
            joined = f"{lines[-1]}{' ' if lines[-1] and not number else ''}{part}"
            if columns_of(joined) <= width:
                lines[-1] = joined
            else:
                lines += [_shorten(part, width, cut)]
    lines = lines if lines[0] else lines[1:]
    if len(lines) > LINES and not _is_sentence(text):
        lines = [*lines[: LINES - 1], _shorten(lines[LINES - 1] + " " * width, width, cut)]
    return lines


def _line(texts: Sequence[str], kept: Sequence[int], widths: dict[int, int], table: Table, cut: str) -> str:
    parts = []
    for text, n in zip(texts, kept, strict=True):
        text = _shorten(text, widths[n], cut)
        space = " " * (widths[n] - columns_of(text))
        parts.append(space + text if _is_numbers(table, n) else text + space)
    return (" " * GAP).join(parts)


def _shorten(text: str, width: int, cut: str) -> str:
    if columns_of(text) <= width:
        return text
    while text and columns_of(text) + columns_of(cut) > width:
        text = text[:-1]
    return text.rstrip() + cut


def _is_numbers(table: Table, column: int) -> bool:
    cells = [row[column] for row in table.rows if row[column] is not None]
    return bool(cells) and all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in cells)
