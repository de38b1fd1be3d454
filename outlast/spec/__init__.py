"""What a run is: its identity, its bundle, where its code comes from, what may change midway."""
