"""Google's APIs as the program and the commands call them: Compute Engine, images, bakes."""
