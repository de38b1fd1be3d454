"""The rehearsal: plays a scenario on the local cloud and checks the guarantees."""
