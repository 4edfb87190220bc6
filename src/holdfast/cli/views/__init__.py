"""Tables, pictures and progress that commands print or write to the folder of a run."""
