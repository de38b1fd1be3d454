"""`outlast report`: one HTML page about a run or sweep, for people without Outlast."""
