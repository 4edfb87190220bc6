"""Data as people have them: files, folders, functions, objects. One module for each form; `data.load` reads all of them."""
