"""The results that docs/results.md shows, one JSON file each, and what runs their commands again.

entries.py   each claim and its command
kept.py      the JSON files: what is kept of a result
page.py      docs/results.md
NAME.json    a result, as its command wrote it
NAME.md      an older result, from before commands wrote a header; shown until the next full run
"""
