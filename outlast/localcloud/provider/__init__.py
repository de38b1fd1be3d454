"""The engine's gcp provider for the local cloud, for machines without the real plugin.

It speaks the engine's provider protocol on one side and sends the real plugin's REST calls on the
other. Only what this project's programs declare is known; anything else is refused by name.

    values      what the engine sends and expects: plain Python and back
    tables      inputs of a resource and the fields of its REST body: one table a type
    changes     what differs between two sets of inputs
    rest        requests, operations, errors
    kind        what every type of resource has in common
    compute, storage, iam    the types
    server      the protocol
"""
