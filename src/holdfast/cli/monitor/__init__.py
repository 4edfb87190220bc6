"""What `holdfast monitor` does: `making` fits, opens, serves and exports monitors, `scores` shows what they say."""
