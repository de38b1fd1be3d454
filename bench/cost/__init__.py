"""The programs that the cost bench runs as processes; each prints one JSON object at its end."""
