"""What the cost bench runs as processes of their own; each prints one JSON object at its end."""
