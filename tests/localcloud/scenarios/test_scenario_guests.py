"""What a scenario does to VMs with processes; a shell script stands for the supervisor."""

import uuid
from typing import Any

import pytest

from tests.localcloud.compute.test_compute import (
    BASE,
    SPOT,
    group_body,
    script,
    template_body,
    wait,
)
from tests.localcloud.local_cloud import PROJECT, FullCloud, make_bucket

pytestmark = pytest.mark.rehearsal

ZONE = "us-central1-a"
GROUPS = f"{BASE}/zones/{ZONE}/instanceGroupManagers"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
RUN = "experiments/dev/0123456789"

# put NAME [BYTES]: writes an object of the run; says on the serial port what came of it.
LIBRARY = """#!/bin/bash
put() {
  local answer
  answer="$(head -c "${2:-10}" /dev/zero | curl -s -o /dev/null -w '%{http_code}' --data-binary @- \
    --max-time 20 -H "Authorization: Bearer $TOKEN" \
    "$STORAGE_EMULATOR_HOST/upload/storage/v1/b/BUCKET/o?uploadType=media&name=RUN/$1")"
  printf 'put %s %s\\n' "$1" "$answer"
  [[ $answer == 200 ]]
}
metadata() { curl -s --max-time 20 -H 'Metadata-Flavor: Google' "$METADATA_BASE/instance/$1"; }
TOKEN="$(metadata service-accounts/default/token | cut -d'"' -f4)"
ID="$(metadata id)"
"""


@pytest.fixture
def cloud(full_cloud: FullCloud) -> FullCloud:
    return full_cloud


class Play:
    """A group of one VM that runs a script under a scenario."""

    def __init__(
        self, cloud: FullCloud, text: str, scheduling: Any = None, **scenario: Any
    ) -> None:
        self.cloud = cloud
        self.bucket = make_bucket(cloud)
        self.group = f"dev-{uuid.uuid4().hex[:10]}"
        document = {"name": "x", "about": "A test.", **scenario}
        cloud.ok("PUT", "/_local/scenario", {"document": document, "target": "dev"})
        email = cloud.ok(
            "POST", f"/iam/v1/projects/{PROJECT}/serviceAccounts", {"accountId": "vm-account"}
        )["email"]
        binding = {"role": "roles/storage.objectAdmin", "members": [f"serviceAccount:{email}"]}
        policy = {"version": 3, "bindings": [binding]}
        cloud.ok("PUT", f"/storage/v1/b/{self.bucket}/iam", policy)
        text = (LIBRARY + text).replace("BUCKET", self.bucket).replace("RUN", RUN)
        items = script(text)["metadata"]["items"]
        items.append({"key": "outlast-prefix", "value": "experiments/dev"})
        spot = {**SPOT, "preemptionNoticeDuration": {"seconds": "120"}}
        template = template_body(
            metadata={"items": items},
            serviceAccounts=[{"email": email, "scopes": [SCOPE]}],
            scheduling=scheduling or spot,
            machineType="n2-standard-2",  # either policy of maintenance
        )
        cloud.ok("POST", f"{BASE}/global/instanceTemplates", template)
        body = group_body(1, baseInstanceName=self.group) | {"name": self.group}
        cloud.ok("POST", GROUPS, body)

    def serial(self, boot: int) -> str:
        """What the nth boot of the group's VM has said."""
        files = list((self.cloud.state / "serial").glob(f"{self.group}-*-{boot}.log"))
        return files[0].read_text() if files else ""

    def said(self, boot: int, text: str) -> str:
        """Waits until the nth boot says it; all that it has said."""
        wait(lambda: text in self.serial(boot))
        return self.serial(boot)

    def log(self) -> list[dict[str, Any]]:
        return self.cloud.ok("GET", "/_local/scenario")["log"]

    def has(self, name: str) -> bool:
        return self.cloud.object("GET", self.bucket, f"{RUN}/{name}").status_code == 200

    def times(self, kind: str) -> list[float]:
        """When this happened to the VMs of the group."""
        events = self.cloud.events(kind)
        return [e["time"] for e in events if str(e["vm"]).startswith(self.group)]


def at_setup(do: dict[str, Any], boot: int = 1) -> dict[str, Any]:
    return {"when": {"boot": boot, "phase": "setup"}, "do": do}


def test_a_vm_is_killed_in_the_middle_of_an_upload(cloud: FullCloud) -> None:
    text = """
      put boots/$ID-0.json
      put attempts/000001/start.json
      put t000001/s000000000010-0a1b/model 400000
      put t000001/s000000000010-0a1b/MANIFEST.json
      put HEAD
      sleep 600
    """
    events = [{"when": {"boot": 1, "phase": "upload"}, "do": {"kill": {}}}]
    play = Play(cloud, text, events=events)
    second = play.said(2, "put HEAD 200")
    assert "put t000001/s000000000010-0a1b/model 200" in second
    first = play.serial(1)
    assert "start.json 200" in first
    assert "model" not in first
    (entry,) = play.log()
    assert (entry["do"], entry["boot"], entry["step"]) == ("kill", 1, 10)


def test_a_preemption_takes_the_time_that_the_scenario_gives(cloud: FullCloud) -> None:
    text = """
      trap 'echo "term $(date +%s%3N)"; sleep 600' TERM
      put boots/$ID-0.json
      echo "flag $(metadata 'preempted?wait_for_change=true&last_etag=0') $(date +%s%3N)"
      while :; do sleep 0.1; done
    """
    preempt = {"preempt": {"notice_sec": 1, "grace_sec": 2}}
    play = Play(cloud, text, events=[at_setup(preempt)])
    play.said(2, "put boots")
    words = play.serial(1).split()
    assert words[words.index("flag") + 1] == "TRUE"
    noticed_ms = int(words[words.index("term") + 1]) - int(words[words.index("flag") + 2])
    assert noticed_ms > 700
    assert play.times("vm-exited")[0] - play.times("vm-stopping")[0] > 1.8


def test_a_host_taken_for_dead_thaws_beside_its_successor(cloud: FullCloud) -> None:
    text = """
      ip="$(metadata network-interfaces/0/ip)"
      printf '%s\\n' "$ID" >id
      python3 -m http.server --bind "$ip" 8099 &
      answer="$(curl -s --retry 60 --retry-connrefused --retry-delay 1 "$ip:8099/id")"
      echo "at $ip answers $answer"
      put boots/$ID-0.json
      put late/$ID
      sleep 600
    """
    lost = {"lost": {"frozen": True}}
    play = Play(cloud, text, events=[at_setup(lost), at_setup({"thaw": {"boot": 1}}, boot=2)])
    second = play.said(2, "put late/")
    first = play.said(1, "put late/")
    lost_id, next_id = (entry["instance_id"] for entry in play.log())
    assert lost_id != next_id
    assert f"put late/{lost_id} 200" in first
    assert play.has(f"late/{next_id}")
    assert [entry["vm"] for entry in play.log()] == [play.log()[0]["vm"]] * 2
    assert [vm["id"] for vm in cloud.ok("GET", "/_local/vms")] == [next_id]
    # The successor has the address, too, and is the one who is reached there.
    address = cloud.ok("GET", f"{BASE}/zones/{ZONE}/instances")["items"][0]["networkInterfaces"]
    assert f"at {address[0]['networkIP']} answers {lost_id}\n" in first
    assert f"at {address[0]['networkIP']} answers {next_id}\n" in second
    living = cloud.ok("GET", "/_local/audit")["pids"]
    assert set(living) > set(cloud.ok("GET", "/_local/vms")[0]["pids"])


def test_a_network_comes_late_and_goes_down_for_a_while(cloud: FullCloud) -> None:
    text = """
      put boots/$ID-0.json
      while put before; do sleep 0.1; done
      until put again; do sleep 0.1; done
      sleep 600
    """
    events = [at_setup({"network-down": {"for_sec": 1}})]
    play = Play(cloud, text, events=events, world={"network": {"late_sec": 1.5, "boots": [1]}})
    said = play.said(1, "put again 200")
    assert "put boots" in said
    assert "put before 000" in said
    (entry,) = [entry for entry in play.log() if entry["do"] == "network-down"]
    assert entry["time"] - play.times("vm-running")[0] > 1.4


def test_a_stopping_vm_has_no_network_any_more(cloud: FullCloud) -> None:
    text = """
      trap 'sleep 0.3; put last; exit' TERM
      put boots/$ID-0.json
      while :; do sleep 0.1; done
    """
    world = {"shutdown": {"network_lost_sec": 0}}
    play = Play(cloud, text, events=[at_setup({"stop": {}})], world=world)
    assert "put last 000" in play.said(1, "put last")
    assert not play.has("last")


def test_a_binding_takes_effect_late(cloud: FullCloud) -> None:
    text = "until put first; do sleep 0.1; done; sleep 600"
    play = Play(cloud, text, world={"iam_delay_sec": 3})
    assert "put first 403" in play.said(1, "put first 200")


def test_a_process_is_killed_and_tools_are_missing(cloud: FullCloud) -> None:
    text = """
      command -v awk || echo "no awk"
      nvidia-smi || echo "nvidia-smi $?"
      sleep 31415 & pid=$!
      put boots/$ID-0.json
      wait $pid
      echo "slept $?"
      sleep 600
    """
    signal = {"signal": {"process": "^sleep 31415", "signal": "KILL"}}
    world = {"tools": {"missing": ["awk"]}, "driver": {"fails_at_boots": [1]}}
    play = Play(cloud, text, events=[at_setup(signal)], world=world)
    said = play.said(1, "slept 137")
    assert "no awk" in said
    assert "nvidia-smi 9" in said
    assert {entry["do"] for entry in play.log()} == {"missing-tools", "driver-fails", "signal"}


def test_a_standard_vm_gets_a_maintenance_notice_and_restarts_as_itself(cloud: FullCloud) -> None:
    text = """
      put boots/$ID-0.json
      echo "event $(metadata 'maintenance-event?wait_for_change=true&last_etag=0')"
      echo "event $(metadata 'maintenance-event?wait_for_change=true')"
      sleep 600
    """
    play = Play(
        cloud,
        text,
        {"onHostMaintenance": "TERMINATE", "automaticRestart": True},
        events=[at_setup({"maintenance": {"notice_sec": 1}})],
    )
    play.said(2, "put boots")
    assert "event TERMINATE_ON_HOST_MAINTENANCE" in play.serial(1)
    (vm,) = cloud.ok("GET", "/_local/vms")
    assert vm["id"] == play.log()[0]["instance_id"]
