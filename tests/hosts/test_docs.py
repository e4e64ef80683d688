"""Three hosts by the commands that docs/cluster.md shows, and what the status says of them."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request

from cluster_processes import LIMIT, wait_for
from loopback import ROOT

from .box import HTTP_PORT
from .client import sending

AHEAD_S = {"10.0.0.1": 0, "10.0.0.2": 1000, "10.0.0.3": 2000}
MEMBERS = 5


def commands() -> dict[str, list[str]]:
    """By host, of the first example: what follows `# on ADDRESS`."""
    example = re.search(r"```\n(# on .*?)```", (ROOT / "docs" / "cluster.md").read_text(), re.S).group(1)
    found: dict[str, list[str]] = {}
    at = ""
    for line in example.splitlines():
        if said := re.match(r"# (?:on ([0-9.]+)|from anywhere)", line):
            at = said.group(1) or "anywhere"
        else:
            found.setdefault(at, []).append(line.removesuffix(" &"))
    return found


class Shell:
    """A command of the example, on its host."""

    def __init__(self, host, program, folder, line: str):
        words = line.split()
        self.log = folder / f"{host.name}-{words[1]}.log"
        if words[0] == "carillon":
            words[0] = str(program)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(host.on(*words), cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def test_three_hosts_by_the_commands_of_the_docs(net, start, program, tiny_models, tmp_path):
    (tmp_path / "models").symlink_to(tiny_models)
    hosts = {address: net.host(f"host-{address[-1]}", ahead_s=ahead_s) for address, ahead_s in AHEAD_S.items()}
    assert {address: host.address for address, host in hosts.items()} == {address: address for address in hosts}
    said = commands()
    status, curl = said.pop("anywhere")
    logs = [start(Shell(hosts[address], program, tmp_path, line)).log for address, lines in said.items() for line in lines]

    def shown() -> str:
        return "\n".join(f"--- {log.name}\n{log.read_text()[-1000:]}" for log in logs)

    def is_ready() -> bool:
        try:
            return urllib.request.urlopen(f"http://{curl.split()[1]}", timeout=LIMIT).status == 200
        except OSError:
            return False

    def ask() -> dict:
        done = subprocess.run([str(program), *status.split()[1:], "--json"], capture_output=True, text=True, timeout=LIMIT)
        return json.loads(done.stdout) if done.returncode == 0 else {"members": []}

    def is_whole() -> bool:
        return sum(each["alive"] is True and each["offset_us"] is not None for each in ask()["members"]) == MEMBERS

    wait_for(is_ready, curl, shown)
    wait_for(is_whole, f"{MEMBERS} members", lambda: f"{ask()}; {shown()}")
    with sending(hosts["10.0.0.1"].at(HTTP_PORT)):
        now = ask()
    assert now["name"] == "box"
    host_of = {each["id"]: hosts[each["address"].split(":")[0]] for each in now["members"]}
    assert {id: host.name for id, host in host_of.items()} == {
        "spare-1": "host-1", "front-1": "host-1", "spare-2": "host-2", "work-2": "host-2", "work-3": "host-3"}
    for each in now["members"]:
        planted = net.clock_offset(host_of[each["id"]], seen_from=host_of[now["leader"]])
        assert abs(each["offset_us"] - planted) <= each["bound_us"] <= 100_000, (each, planted)
