"""How large a page becomes and how long it takes, and networks compared by what is proved of them and by what breaks them."""
