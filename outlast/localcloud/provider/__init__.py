"""The engine's gcp provider for the local cloud, for machines without the real plugin.

It implements the engine's provider protocol and sends the REST calls of the real plugin. It knows
only the resources that this project's programs declare, and refuses others by name.

    values      conversion between the engine's values and plain Python
    tables      translation between a resource's inputs and its REST body: one table for each type
    changes     differences between two sets of inputs
    rest        requests, operations, errors
    kind        the common base of all types of resources
    compute, storage, iam    the types
    server      the protocol
"""
