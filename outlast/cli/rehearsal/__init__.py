"""The rehearsal: plays a scenario on the local cloud and judges what it saw."""
