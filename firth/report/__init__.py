"""Pages about runs: one self-contained HTML file each, with inline SVG, no scripts and no external requests."""
