"""The VM of an experiment, and the way into it: ssh through IAP, or a local VM's environment."""

import os
import shutil
from dataclasses import dataclass

from outlast.base.http_client import RequestFailed, ask
from outlast.cli import boots, endpoint, ssh
from outlast.cli.boots import Vm
from outlast.cli.dev.channel import COMMAND, PYTHON, Channel, Lost
from outlast.cli.errors import CloudError, OperateError, UsageError
from outlast.cloud.compute import Group

KEEPALIVE = ("-o ServerAliveInterval=10", "-o ServerAliveCountMax=3")
"""Options of ssh: it ends if the VM does not answer for 30 s. gcloud splits each at its spaces, and
asks for no terminal if it gets a command (googlecloudsdk, ssh_utils.py and ssh.py, 2026-11)."""


@dataclass(frozen=True)
class Way:
    """How to get into the VMs of a group."""

    group: Group
    user: str = ""
    """The user to log in as; empty: gcloud's own choice."""

    def vm(self) -> Vm | None:
        """The newest VM of the group; None if there is none now. Raises Lost if unknown."""
        seen = boots.look(self.group)
        if seen is None:
            raise Lost("its group does not answer")
        return seen.vm

    def connect(self, vm: Vm) -> Channel:
        """Raises Lost if this VM cannot be entered now, OperateError if there is no way in."""
        if endpoint.is_local():
            return self._into_local(os.environ[endpoint.VARIABLE].rstrip("/"), vm)
        if shutil.which("gcloud") is None:
            raise OperateError(
                "gcloud: is not on PATH, and outlast dev logs in with it; install the Google Cloud"
                " CLI, or add it to PATH"
            )
        argv = ["gcloud", *ssh.through_iap(self.group.project, vm, self.user), "--quiet"]
        argv += [f"--ssh-flag={flag}" for flag in KEEPALIVE]
        return Channel([*argv, f"--command={COMMAND}"])

    def _into_local(self, url: str, vm: Vm) -> Channel:
        """A process with the environment of the VM's first process, which the local cloud then
        takes for one of the VM's."""
        if self.user:
            raise UsageError("--user: VMs of the local cloud have one user; leave it out")
        try:
            environment = ssh.local_environment(vm)
            if ssh.ROOT_VARIABLE not in environment:
                raise OperateError(
                    f"VM {vm.name}: is a QEMU machine (--guest vm), which outlast dev cannot"
                    " enter; use the local cloud without --guest"
                )
            channel = Channel(PYTHON, environment)
            try:
                ask(
                    f"{url}/_local/vms/{vm.name}/processes",
                    what=f"VM {vm.name}",
                    method="POST",
                    body={"pid": channel.pid},
                    direct=True,
                )
            except BaseException:
                channel.close()
                raise
        except (CloudError, RequestFailed) as error:
            raise Lost(f"cannot be entered ({error})") from None
        return channel
