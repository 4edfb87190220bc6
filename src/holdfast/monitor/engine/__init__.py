"""How scores are computed: by enumeration, by draws, whole sequences at once or one element after the other."""
