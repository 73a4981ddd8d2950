"""How an HTML report looks: in the dark, in the light, on a phone and on paper. Nothing is told by colour alone."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark;
  --page: #ffffff; --text: #1b1f24; --soft: #57606a; --line: #d0d7de; --box: #f6f8fa; --empty: #e4e8ec;
  --good: #0a6b4f; --bad: #a3242b; --warn: #8a5300;
  --met: #4fae8f; --late: #d9822b; --refused: #8f6bc4; --failed: #b8323a; --ink: #1b1f24;
  --s0: #0b62c4; --s1: #b34700; --s2: #00795c; --s3: #7a3fb0; --s4: #806300; --s5: #b0276b; }
@media (prefers-color-scheme: dark) { :root {
  --page: #14171c; --text: #e6e9ed; --soft: #a4adb8; --line: #3a424d; --box: #1d2229; --empty: #2b323b;
  --good: #58d3a8; --bad: #ff8a8f; --warn: #f0b35c;
  --met: #3f9579; --late: #c9772a; --refused: #8b6cc0; --failed: #c2444b; --ink: #0d0f12;
  --s0: #6fb1ff; --s1: #ff9d5c; --s2: #4fd1a5; --s3: #c79bff; --s4: #e0bf45; --s5: #ff7fb8; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 64rem; margin: 0 auto; padding: 1.25rem 1rem 4rem; }
h1 { font-size: 1.25rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.25rem 0 .5rem; }
p { margin: .4rem 0; max-width: 46rem; }
.verdict { font-size: 1.45rem; line-height: 1.35; margin: .75rem 0; overflow-wrap: anywhere; }
.soft { color: var(--soft); }
.badge { display: inline-block; border: 2px solid currentColor; border-radius: .4rem; padding: 0 .5rem;
  font-weight: 600; }
.badge.good { color: var(--good); } .badge.bad { color: var(--bad); } .badge.warn { color: var(--warn); }
.scroll { overflow-x: auto; margin: .75rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .94rem; }
th, td { padding: .3rem .55rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { color: var(--soft); font-weight: 600; }
thead th { white-space: normal; vertical-align: bottom; }
th:first-child, td.text, th.text { text-align: left; }
tbody th { color: var(--text); }
.scroll th:first-child { position: sticky; left: 0; background: var(--page); }
tr.total > * { font-weight: 600; } tr:not(.total) + tr.total > * { border-top: 2px solid var(--soft); }
td.over { color: var(--bad); font-weight: 600; }
.figures { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
figure { margin: 0; padding: .75rem; border: 1px solid var(--line); border-radius: .5rem; background: var(--box); }
figcaption { font-weight: 600; margin-bottom: .4rem; }
figcaption span { display: block; font-weight: 400; font-size: .9rem; color: var(--soft); }
svg.chart { display: block; width: 100%; height: auto; overflow: visible; }
dl { display: grid; grid-template-columns: minmax(8rem, max-content) 1fr; gap: .25rem 1rem; margin: .5rem 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 34rem) { dl { grid-template-columns: 1fr; } dd { margin-bottom: .5rem; }
  .verdict { font-size: 1.2rem; } }
code, pre { font: .85rem/1.45 ui-monospace, monospace; overflow-wrap: anywhere; white-space: pre-wrap; }
pre { background: var(--box); border: 1px solid var(--line); padding: .75rem; border-radius: .4rem; }
ul { margin: .4rem 0; padding-left: 1.2rem; max-width: 50rem; }
summary { cursor: pointer; }
.chart text { fill: var(--text); font: 13px system-ui, sans-serif; }
.chart text.tick { fill: var(--soft); font-size: 12px; } .chart text.label { fill: var(--soft); }
.chart text.name { font-weight: 600; font-size: 14px; }
.grid { stroke: var(--line); stroke-width: 1; } .axis { stroke: var(--soft); stroke-width: 1; }
.block { stroke: var(--text); stroke-width: .6; } .empty { fill: var(--empty); }
.mark { stroke: var(--text); stroke-width: 3; }
.shade { fill: var(--soft); opacity: .18; }
.line { fill: none; stroke-width: 2.2; } .target { stroke-width: 1.4; } .band { opacity: .16; }
.limit { stroke: var(--bad); stroke-width: 2; stroke-dasharray: 7 4; }
.stem { stroke: var(--s0); stroke-width: 1.2; } .dot { fill: var(--s0); }
.s0 { stroke: var(--s0); } .s1 { stroke: var(--s1); stroke-dasharray: 8 4; }
.s2 { stroke: var(--s2); stroke-dasharray: 2 3; }
.s3 { stroke: var(--s3); stroke-dasharray: 10 3 2 3; } .s4 { stroke: var(--s4); stroke-dasharray: 14 5; }
.s5 { stroke: var(--s5); stroke-dasharray: 4 2 1 2; }
.spot.spot { fill: none; stroke-width: 1.4; stroke-dasharray: none; }
.target.target { stroke-dasharray: 2 3; }
.head, .band { stroke: none; }
.head.s0, .band.s0 { fill: var(--s0); } .head.s1, .band.s1 { fill: var(--s1); } .head.s2, .band.s2 { fill: var(--s2); }
.head.s3, .band.s3 { fill: var(--s3); } .head.s4, .band.s4 { fill: var(--s4); } .head.s5, .band.s5 { fill: var(--s5); }
@media (max-width: 34rem) { .chart text { font-size: 15px; } .chart text.tick { font-size: 14px; }
  .chart text.label { font-size: 14px; } }
@media print { figure, tr { break-inside: avoid; } }
"""

PATTERNS = """
<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs>
<pattern id="met" width="8" height="8" patternUnits="userSpaceOnUse">
<rect width="8" height="8" fill="var(--met)"/></pattern>
<pattern id="late" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
<rect width="7" height="7" fill="var(--late)"/><rect width="2.4" height="7" fill="var(--ink)"/></pattern>
<pattern id="refused" width="7" height="7" patternUnits="userSpaceOnUse">
<rect width="7" height="7" fill="var(--refused)"/>
<path d="M0 0L7 7M7 0L0 7" stroke="var(--ink)" stroke-width="1.1"/></pattern>
<pattern id="failed" width="6" height="6" patternUnits="userSpaceOnUse">
<rect width="6" height="6" fill="var(--failed)"/>
<circle cx="3" cy="3" r="1.5" fill="var(--page)"/></pattern>
<pattern id="not-judged" width="6" height="6" patternUnits="userSpaceOnUse">
<rect width="6" height="6" fill="var(--page)"/>
<path d="M0 3h6" stroke="var(--soft)" stroke-width="1"/></pattern>
</defs></svg>
"""
"""Fillings of outcomes, by the names of `loadgen.outcome_group`."""
