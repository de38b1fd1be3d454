"""The local cloud: the parts of Compute Engine and its neighbours that a stack needs, on loopback.

One process serves Compute, Storage, IAM, Resource Manager and Secret Manager with the interfaces of
the real ones, runs VMs as process trees, and injects planned faults. It uses startup scripts as
files and the APIs over HTTP, and imports no code that it rehearses."""
