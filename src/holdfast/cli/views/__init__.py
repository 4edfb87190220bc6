"""What commands put on the terminal and beside a run."""
