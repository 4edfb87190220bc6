"""One chart per module: `draw(...)` returns inline SVG, also for no input and a single one."""
