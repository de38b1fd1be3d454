"""The local cloud: the part of Compute Engine and its neighbours that a stack needs, on loopback.

One process serves Compute, Storage, IAM and Resource Manager in the shape of the real ones, runs
VMs as process trees and injects faults on demand. It knows startup scripts as files and the APIs
as HTTP, and imports nothing of what it rehearses.
"""
