"""What holds for every request: its sender, and whether its body and query fit Google's API."""
