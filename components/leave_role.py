"""The one thing that a VM may do to groups: leave its own."""

from typing import TypedDict

import pulumi
from pulumi_gcp import projects

from outlast.spec import permissions


class LeaveRoleArgs(TypedDict):
    """Inputs of LeaveRole."""

    project: pulumi.Input[str]
    stack: str
    """Whose role it is: an experiment's name or a foundation's. Plain str: the id is of it."""


class LeaveRole(pulumi.ComponentResource):
    """The custom role by which a VM finds itself in its group and leaves it.

    It applies to every group of the project, because no policy can be set on a single group; use
    a separate project to prevent that.
    """

    role: pulumi.Output[str]
    """The role's full name."""

    def __init__(
        self,
        name: str,
        args: LeaveRoleArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("outlast:index:LeaveRole", name, {}, opts)
        role = projects.IAMCustomRole(
            f"{name}-role",
            role_id=role_id(args["stack"]),
            project=args["project"],
            title=f"Outlast: leave the group ({args['stack']})",
            description="Lets a VM find itself in its managed instance group and leave it.",
            permissions=list(permissions.LEAVE_GROUP),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.role = role.name
        self.register_outputs({"role": self.role})


def role_id(stack: str) -> str:
    """The custom role's id. The same for ever: a deleted role's id stays taken for weeks, and the
    provider brings that role back."""
    return f"outlast_{stack.replace('-', '_')}"
