"""The stylesheet of every page. Colours are those of Okabe and Ito, which colour-blind readers can distinguish."""

COLOURS = """
:root {
  color-scheme: light dark;
  --ground: #f7f6f2; --card: #ffffff; --ink: #1c2024; --soft: #5a636d; --rule: #e4e2db; --track: #efeee9;
  --s0: #0072b2; --s1: #c44e00; --s2: #00795a; --s3: #a8457f; --s4: #7a6a00; --s5: #5b4bb5;
  --heat: #00538f;
  --good: #00795a; --warn: #b45309; --good-ground: #e7f3ee; --warn-ground: #fcf0e1; --mark: #dcebf5;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", "Noto Sans CJK SC",
    "PingFang SC", "Microsoft YaHei", Arial, sans-serif;
  --serif: "Iowan Old Style", "Palatino Linotype", Palatino, "Book Antiqua", Georgia, "Noto Serif", "Songti SC",
    "Noto Serif CJK SC", serif;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #101317; --card: #181c22; --ink: #e9ebee; --soft: #9ca6b1; --rule: #2b313a; --track: #232931;
    --s0: #5ab7ec; --s1: #f0a04b; --s2: #45c79f; --s3: #e296c0; --s4: #d9c64a; --s5: #b3a6ff;
    --heat: #6cc3f5;
    --good: #45c79f; --warn: #f0a04b; --good-ground: #13261f; --warn-ground: #2c2113; --mark: #17354a;
  }
}
"""
"""The colours by name, for a bright and for a dark screen."""

CHARTS = """
svg text { font: 12.5px var(--sans); fill: var(--soft); font-variant-numeric: tabular-nums; }
svg .word, svg .axis { fill: var(--ink); }
svg .axis { font-weight: 600; }
svg .end { fill: var(--ink); font-weight: 600; }
.rule { stroke: var(--rule); } .tick { stroke: var(--soft); }
.reference { stroke: var(--soft); stroke-width: 1.6; stroke-dasharray: 5 4; fill: none; }
.line { fill: none; stroke-width: 2.2; stroke-linejoin: round; stroke-linecap: round; }
.faint { stroke-width: 1; opacity: .45; }
.line.s0 { stroke: var(--s0); } .line.s1 { stroke: var(--s1); } 
.line.s2 { stroke: var(--s2); stroke-dasharray: 7 4; } .line.s3 { stroke: var(--s3); stroke-dasharray: 2 4; }
.line.s4 { stroke: var(--s4); stroke-dasharray: 12 4; } .line.s5 { stroke: var(--s5); stroke-dasharray: 7 3 1 3; }
.range { stroke-width: 1.4; }
.range.s0 { stroke: var(--s0); } .range.s1 { stroke: var(--s1); } .range.s2 { stroke: var(--s2); }
.range.s3 { stroke: var(--s3); } .range.s4 { stroke: var(--s4); } .range.s5 { stroke: var(--s5); }
.dot { stroke: var(--card); stroke-width: 1.2; }
.dot.s0 { fill: var(--s0); } .dot.s1 { fill: var(--s1); } .dot.s2 { fill: var(--s2); } .dot.s3 { fill: var(--s3); }
.dot.s4 { fill: var(--s4); } .dot.s5 { fill: var(--s5); }
svg .end.s0 { fill: var(--s0); } svg .end.s1 { fill: var(--s1); }
svg .end.s2 { fill: var(--s2); } svg .end.s3 { fill: var(--s3); }
svg .end.s4 { fill: var(--s4); } svg .end.s5 { fill: var(--s5); }
svg .end.reference { fill: var(--soft); stroke: none; }
.track { fill: var(--track); } .bar { fill: var(--s0); } .heat { fill: var(--heat); }
.frame { fill: none; stroke: none; } .chosen { stroke: var(--s1); stroke-width: 2.5; }
"""
"""What a chart looks like."""

CSS = (
    COLOURS
    + """\
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 1rem/1.6 var(--sans); overflow-wrap: anywhere; }
main { max-width: 62rem; margin: 0 auto; padding: 3.5rem 1.5rem 2rem; }
h1, h2 { font-family: var(--serif); font-weight: 600; line-height: 1.15; text-wrap: balance; margin: 0; }
h1 { font-size: clamp(2rem, 5vw, 3rem); letter-spacing: -.015em; }
h2 { font-size: 1.6rem; letter-spacing: -.005em; }
h3 { font-size: 1rem; font-weight: 600; margin: 0; }
p { margin: .5rem 0 0; max-width: 44rem; }
.kind { color: var(--soft); font-size: .8rem; letter-spacing: .09em; text-transform: uppercase; margin: 0 0 .6rem; }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin-top: 1.1rem; font-size: .92rem; }
nav a { color: var(--s0); text-decoration: none; padding: .2rem 0; }
nav a:hover, nav a:focus-visible { text-decoration: underline; text-underline-offset: .25em; }
section { margin-top: 3.5rem; scroll-margin-top: 1.5rem; }
section > p { color: var(--soft); }
.verdict { margin-top: 1.75rem; padding: 1.2rem 1.4rem; border-radius: .6rem; border-left: .3rem solid var(--good);
  background: var(--good-ground); }
.verdict strong { display: block; position: relative; padding-left: 1.9rem; font: 600 1.3rem/1.35 var(--serif);
  text-wrap: balance; }
.verdict svg { position: absolute; left: 0; top: .3rem; width: 1.2rem; height: 1.2rem; fill: none;
  stroke: var(--good); stroke-width: 2.6; stroke-linecap: round; stroke-linejoin: round; }
.verdict.warn { border-color: var(--warn); background: var(--warn-ground); }
.verdict.warn svg { stroke: var(--warn); }
.verdict ul { margin: .6rem 0 0; padding: 0 0 0 1.9rem; list-style: none; }
.verdict li + li { margin-top: .2rem; }
.notice { margin-top: 1rem; padding: .65rem 1rem; border-radius: .45rem; border-left: .25rem solid var(--warn);
  background: var(--warn-ground); }
.notice b { color: var(--warn); }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.2rem, 1fr)); gap: 1px; margin: 1.5rem 0 0;
  background: var(--card); border: 1px solid var(--rule); border-radius: .6rem; overflow: hidden; }
.tiles div { outline: 1px solid var(--rule); padding: .8rem 1rem .85rem; }
.tiles dt { color: var(--soft); font-size: .82rem; line-height: 1.35; }
.tiles dd { margin: .15rem 0 0; font-size: 1.3rem; line-height: 1.3; font-weight: 600;
  font-variant-numeric: tabular-nums; }
.tiles .long dd { font-size: 1rem; }
figure, .card { margin: 1.25rem 0 0; padding: 1.25rem 1.4rem; background: var(--card); border: 1px solid var(--rule);
  border-radius: .6rem; min-width: 0; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 23rem), 1fr)); gap: 1.25rem;
  margin-top: 1.25rem; align-items: start; }
.grid > * { margin: 0; }
figure svg, .card svg { display: block; width: 100%; height: auto; }
figure .roll { overflow-x: auto; }
figure .roll svg { width: auto; margin: 0 auto; }
figure h3 { margin-bottom: .75rem; }
figcaption { color: var(--soft); font-size: .9rem; line-height: 1.5; margin-top: .8rem; max-width: 44rem; }
.only-narrow { display: none; }
.card .said { margin: 0 0 .8rem; font: 1.12rem/1.55 var(--serif); }
.card mark { background: var(--mark); color: inherit; border-radius: .25rem; padding: .05em .35em;
  font: .85em/1.2 var(--sans); }
.near { list-style: none; margin: 0; padding: 0; }
.near li { display: grid; grid-template-columns: 3rem 1fr; gap: .75rem; padding: .45rem 0;
  border-top: 1px solid var(--rule); }
.near b { font-variant-numeric: tabular-nums; font-weight: 600; }
.near b::after { content: ""; display: block; height: .28rem; border-radius: .2rem; background:
  linear-gradient(var(--s0) 0 0) 0 0 / var(--share) 100% no-repeat var(--track); }
details { margin-top: 1.25rem; }
summary { cursor: pointer; color: var(--s0); }
.roll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin-top: .75rem; font-size: .92rem;
  font-variant-numeric: tabular-nums; }
th { color: var(--soft); font-weight: 500; white-space: nowrap; }
th, td { text-align: right; padding: .4rem .75rem; border-bottom: 1px solid var(--rule); }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
footer { max-width: 62rem; margin: 2rem auto 0; padding: 1.25rem 1.5rem 2.5rem; color: var(--soft); font-size: .85rem; }
:focus-visible { outline: 2px solid var(--s0); outline-offset: 3px; border-radius: 2px; }
"""
    + CHARTS
    + """
@media (max-width: 40rem) {
  main { padding: 2rem 1rem 1rem; }
  figure, .card { padding: 1rem; }
  figure .roll svg { margin: 0; }
  .only-wide { display: none; }
  .only-narrow { display: block; }
  .tiles { grid-template-columns: 1fr 1fr; }
  section { margin-top: 2.75rem; }
}
@media print {
  :root { --ground: #fff; }
  nav, summary { display: none; }
  figure, .card, .verdict { break-inside: avoid; }
}
"""
)
