"""The VM's service account, and the little that it may do."""

from collections.abc import Sequence
from typing import NotRequired, TypedDict

import pulumi
from pulumi_gcp import projects, secretmanager, serviceaccount, storage

from outlast.spec import labels, permissions
from outlast.spec.account import account_id, short_digest
from outlast.spec.sweep_rules import VM_FOLDERS, prefix_of


class VmIdentityArgs(TypedDict):
    """Inputs of VmIdentity."""

    project: pulumi.Input[str]
    experiment: str
    """Plain str: ids are derived from it."""
    bucket: pulumi.Input[str]
    written: str
    """What the names of objects that the VM may write begin with, such as
    `experiments/EXPERIMENT/`."""
    leave_role: pulumi.Input[str]
    """The custom role that lets a VM leave its group."""
    account: NotRequired[str]
    """Address of an existing service account; empty: one is created. Plain str: it decides what is
    declared."""
    bound: NotRequired[bool]
    """Whether another stack has bound that account: nothing is declared."""
    mark: NotRequired[str]
    """Ends the descriptions: names the stack, so that `outlast destroy` finds what a damaged state
    has lost."""
    secrets: NotRequired[Sequence[tuple[str, str]]]
    """(project, name) of each secret that it may read. Plain strings: each becomes a binding."""
    payer: NotRequired[str]
    """Project that pays for reading data where a bucket lets the requester pay; empty for none.
    Plain str: it decides what is declared."""
    sweep: NotRequired[str]
    """Name of the sweep whose values and decisions it may read and create, but not change; empty
    for none. Plain str: it decides what is declared."""
    reads: NotRequired[Sequence[str]]
    """Further `gs://` paths that it may read, in any bucket: objects, or folders with everything
    below them. Plain strings: each becomes a binding.
    """


class VmIdentity(pulumi.ComponentResource):
    """The VM's service account, the stack's own or an existing one: it can read `data/` and the
    paths given, write to its prefix, and leave its group."""

    email: pulumi.Output[str]
    """The service account's address."""

    bindings: list[pulumi.Resource]
    """Every binding; a VM that boots before them gets 403."""

    def __init__(
        self,
        name: str,
        args: VmIdentityArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("outlast:index:VmIdentity", name, {}, opts)
        experiment = args["experiment"]
        email = pulumi.Output.from_input(args.get("account") or "")
        if not args.get("account"):
            email = serviceaccount.Account(
                f"{name}-account",
                account_id=account_id(experiment),
                project=args["project"],
                display_name=f"Outlast VMs of {experiment}",
                description=labels.described("Outlast: what VMs run as", args.get("mark", "")),
                opts=pulumi.ResourceOptions(parent=self),
            ).email
        self.email = email
        self.bindings = []
        if args.get("bound"):
            self.register_outputs({"email": self.email})
            return
        member = pulumi.Output.concat("serviceAccount:", email)
        leave = projects.IAMMember(
            f"{name}-leave",
            project=args["project"],
            role=args["leave_role"],
            member=member,
            opts=pulumi.ResourceOptions(parent=self),
        )
        write = storage.BucketIAMMember(
            f"{name}-write",
            bucket=args["bucket"],
            role="roles/storage.objectUser",
            member=member,
            condition={
                "title": "outlast-own-prefix",
                "description": f"Only {args['written']}",
                "expression": starting(args["bucket"], args["written"]),
            },
            opts=pulumi.ResourceOptions(parent=self),
        )
        read = storage.BucketIAMMember(
            f"{name}-read",
            bucket=args["bucket"],
            role="roles/storage.objectViewer",
            member=member,
            condition={
                "title": "outlast-data",
                "description": "Only data/",
                "expression": below(args["bucket"], "data"),
            },
            opts=pulumi.ResourceOptions(parent=self),
        )
        besides: list[pulumi.Resource] = [
            self._reads(f"{name}-read-{short_digest(path)}", path, member)
            for path in args.get("reads", ())
        ]
        if sweep := args.get("sweep"):
            besides += self._of_sweep(name, args["bucket"], sweep, member)
        if payer := args.get("payer"):
            besides.append(
                projects.IAMMember(
                    f"{name}-payer",
                    project=payer,
                    role="roles/serviceusage.serviceUsageConsumer",
                    member=member,
                    opts=pulumi.ResourceOptions(parent=self),
                )
            )
        self.bindings = [leave, write, read, *besides]
        for project, secret in args.get("secrets", ()):
            self.bindings.append(
                secretmanager.SecretIamMember(
                    f"{name}-secret-{short_digest(f'{project}/{secret}')}",
                    project=project,
                    secret_id=secret,
                    role="roles/secretmanager.secretAccessor",
                    member=member,
                    opts=pulumi.ResourceOptions(parent=self),
                )
            )
        self.register_outputs({"email": self.email})

    def _of_sweep(
        self, name: str, bucket: pulumi.Input[str], sweep: str, member: pulumi.Input[str]
    ) -> list[storage.BucketIAMMember]:
        """objectCreator alone can replace nothing (page "IAM roles for Cloud Storage", read in
        November 2026)."""
        folders = [f"{prefix_of(sweep)}/{folder}/" for folder in VM_FOLDERS]
        return [
            storage.BucketIAMMember(
                f"{name}-sweep-{what}",
                bucket=bucket,
                role=f"roles/storage.{role}",
                member=member,
                condition={
                    "title": f"outlast-sweep-{what}",
                    "description": f"Only {', '.join(folders)}",
                    "expression": starting(bucket, *folders),
                },
                opts=pulumi.ResourceOptions(parent=self),
            )
            for what, role in (("read", "objectViewer"), ("create", "objectCreator"))
        ]

    def _reads(self, name: str, path: str, member: pulumi.Input[str]) -> storage.BucketIAMMember:
        bucket, _, prefix = path.removeprefix("gs://").partition("/")
        return storage.BucketIAMMember(
            name,
            bucket=bucket,
            role="roles/storage.objectViewer",
            member=member,
            condition={
                "title": f"outlast-data-{short_digest(path)}",
                "description": f"Only {prefix}",
                "expression": at_or_below(bucket, prefix),
            },
            opts=pulumi.ResourceOptions(parent=self),
        )


def at_or_below(bucket: str, path: str) -> pulumi.Output[str]:
    """The IAM condition "the object at this path, or objects below it"; only below it if the path
    ends in a slash.
    """
    folder = below(bucket, path.rstrip("/"))
    if path.endswith("/"):
        return folder
    return pulumi.Output.concat(
        folder, f" || resource.name == 'projects/_/buckets/{bucket}/objects/{path}'"
    )


def below(bucket: pulumi.Input[str], prefix: str) -> pulumi.Output[str]:
    """The IAM condition "objects below the prefix, and listing them"."""
    return starting(bucket, f"{prefix}/")


def starting(bucket: pulumi.Input[str], *starts: str) -> pulumi.Output[str]:
    """The IAM condition "objects whose names have one of these starts, and listing them"."""
    return pulumi.Output.from_input(bucket).apply(lambda name: permissions.starting(name, *starts))
