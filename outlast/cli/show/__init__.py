"""Shows results for people: sentences, tables and bars."""
