"""The short forms people type: hf.radius, hf.worst, hf.bounds, hf.risk."""
