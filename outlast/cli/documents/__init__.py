"""What `--json` prints: one type for each document. `docs/json.md` is generated from them.

Later versions may add fields. Times are ISO 8601 in UTC, durations seconds, prices US dollars.
"""
