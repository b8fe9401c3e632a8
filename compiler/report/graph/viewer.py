"""The picture of a graph as an HTML page: moved and enlarged with the pointer, searched, with the full text of what is pointed at.

One file that needs nothing else and asks nobody. It runs one script, which is ours and has nothing of a model in it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape

from ....runtime.kinds import PAGE_MARK
from .draw import Function, account_text, picture
from .placement import plain

PAGE_STYLE = """
html, body { margin: 0; height: 100%; overflow: hidden; font: 13px system-ui, sans-serif; color: #1d2330; }
header { position: fixed; top: 0; left: 0; right: 0; padding: 6px 10px; background: #fffffff0; border-bottom: 1px solid #d5dae4; }
#text { position: fixed; bottom: 0; left: 0; right: 0; max-height: 30%; overflow: auto; margin: 0; padding: 6px 10px;
  background: #fffffff5; border-top: 1px solid #d5dae4; font: 11px ui-monospace, monospace;
  white-space: pre-wrap; overflow-wrap: anywhere; }
#text:empty { display: none; } svg { width: 100%; height: 100%; cursor: grab; }
.found > rect { stroke: #d02090; stroke-width: 4; }
.box:hover > rect { stroke-width: 2.5; } .arrow:hover { stroke: #d02090; stroke-width: 3; }
"""
SCRIPT = """
const svg = document.querySelector('svg'), text = document.getElementById('text'), asked = document.getElementById('asked');
const found = document.getElementById('found'), boxes = [...svg.querySelectorAll('.box')];
const said = boxes.map(box => box.querySelector(':scope > title').textContent);
for (const title of svg.querySelectorAll('title')) { title.parentNode.said = title.textContent; title.remove(); }
const all = svg.viewBox.baseVal, view = { x: all.x, y: all.y, width: all.width, height: all.height };
const show = () => svg.setAttribute('viewBox', `${view.x} ${view.y} ${view.width} ${view.height}`);
const at = event => { const p = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse()); return p; };
const enlarge = (factor, p) => {
  view.x = p.x - (p.x - view.x) * factor; view.y = p.y - (p.y - view.y) * factor;
  view.width *= factor; view.height *= factor; show();
};
const fit = () => {
  const room = svg.getBoundingClientRect(), width = Math.max(room.width, 300);
  view.width = width; view.height = room.height; view.x = all.x + all.width / 2 - width / 2; view.y = all.y - 50; show();
};
svg.addEventListener('wheel', event => { event.preventDefault(); enlarge(Math.exp(event.deltaY / 500), at(event)); }, { passive: false });
let from = null;
svg.addEventListener('pointerdown', event => { from = at(event); svg.setPointerCapture(event.pointerId); });
svg.addEventListener('pointerup', () => { from = null; });
svg.addEventListener('pointermove', event => {
  if (!from) { return; }
  const p = at(event); view.x += from.x - p.x; view.y += from.y - p.y; show();
});
svg.addEventListener('pointerover', event => {
  const part = event.target.closest('.box, .arrow'); if (part && !from) { text.textContent = part.said; }
});
let hits = [], next = 0;
const go = () => {
  if (!hits.length) { return; }
  const box = boxes[hits[next % hits.length]], r = box.getBoundingClientRect();
  const p = at({ clientX: r.left + r.width / 2, clientY: r.top + 12 });
  view.x = p.x - view.width / 2; view.y = p.y - view.height / 2; show(); text.textContent = box.said;
  found.textContent = `${next % hits.length + 1} of ${hits.length}`; next += 1;
};
asked.addEventListener('input', () => {
  const word = asked.value.toLowerCase(); next = 0;
  hits = word ? said.flatMap((each, n) => each.toLowerCase().includes(word) ? [n] : []) : [];
  boxes.forEach((box, n) => box.classList.toggle('found', hits.includes(n)));
  found.textContent = word ? `${hits.length} found` : ''; text.textContent = ''; go();
});
asked.addEventListener('keydown', event => { if (event.key === 'Enter') { go(); } });
document.getElementById('whole').addEventListener('click', () => {
  view.x = all.x; view.y = all.y; view.width = all.width; view.height = all.height; show();
});
document.getElementById('near').addEventListener('click', fit);
fit();
"""


def html(title: str, functions: Sequence[Function]) -> str:
    """The picture as a page with the full text of each box, which is searched as well."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    name = escape(plain(title))
    accounts = escape("; ".join(account_text(name, account) for name, _, account in functions))
    return "\n".join(
        [
            f'<!doctype html><html lang="en"><head><meta charset="utf-8">{PAGE_MARK}',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            f"<title>{name}</title><style>{PAGE_STYLE}</style></head><body>",
            picture(title, functions),
            f'<header><b>{name}</b> <input id="asked" type="search" placeholder="search: op, value, type" size="28">',
            '<span id="found"></span>',
            f'<button id="near">1:1</button> <button id="whole">all</button> <span>{accounts}</span></header>',
            f'<pre id="text"></pre><script>{SCRIPT}</script></body></html>',
            "",
        ]
    )


__all__ = ["html"]
