"""Is a module a recurrent layer between a front and a head? Read from its code."""
