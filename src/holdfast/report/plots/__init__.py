"""One plot a file: `draw(...)` returns inline SVG and copes with none, one and many."""
