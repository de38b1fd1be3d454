"""Ten thousand kills: attempts are forks of one warmed process, which end at exact operations.

A VM is two processes, forks of a process that has imported everything: the real supervisor
(`supervise`) and the real training loop (`outlast.train`), joined by the real socket. The bucket is
a folder in memory. A kill is SIGKILL of both at once, so nothing of the attempt runs further; a
frozen VM is SIGSTOP of both.

    programs.py   what is trained
    probe.py      events of a VM: operations of its store, calls of its group, moments of its loop
    vm.py         one VM
    scenes.py     buckets to begin with, the events of undisturbed runs, the truth
    points.py     phases, kinds, and the point of a seed and a number
    play.py       one point: the VMs until the run has ended
    verdict.py    what must hold afterwards
    matrix.py     all points, on several processes, and the table
"""
