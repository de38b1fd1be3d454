"""What may keep a stack from coming up, looked up before anything is created."""
