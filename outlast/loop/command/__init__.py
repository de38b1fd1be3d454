"""Any command as a trainer: an unmodified script, watched from outside.

``python -m outlast.loop.command -- python train.py`` is a trainer like any other: it speaks the
protocol with the supervisor that ``OUTLAST_SOCKET`` names, or starts one for a folder. The script
knows nothing of that. It finds its last checkpoint in ``CHECKPOINT_DIR``, writes the next one
there, and writes its result into ``RESULT_DIR``.

``folder`` lists and copies the checkpoint, ``marks`` and ``mark`` implement ``outlast mark``, and
``runner`` makes the decisions.
"""
