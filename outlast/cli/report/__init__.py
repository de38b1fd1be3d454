"""`outlast report`: one HTML page about a run, for a person who has nothing of Outlast's."""
