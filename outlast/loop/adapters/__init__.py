"""One module a framework: how its objects become plain data and come back.

A module has ``capture`` and ``restore`` as outlast.loop.blobs.Adapter describes them, imports its
framework, and is itself imported only once the trainer has imported that framework.
"""
