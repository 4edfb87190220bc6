"""Read data from files, folders, functions and objects: one module for each form, `data.load` for all."""
