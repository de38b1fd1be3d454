"""The operator's side: the command line, the engine, the rehearsal and its guarantees."""
