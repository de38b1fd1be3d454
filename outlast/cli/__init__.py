"""What runs on your machine: the command line, the engine, the rehearsal and its guarantees."""
