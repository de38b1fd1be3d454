"""One module per framework, which turns its objects into plain data and back.

A module has ``capture`` and ``restore`` as outlast.loop.blobs.Adapter describes them, imports its
framework, and is itself imported only once the trainer has imported that framework.
"""
