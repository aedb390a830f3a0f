"""The systemd units confine what they start, and what they start runs confined."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy import confined
from tests.deploy.files import DEPLOY, ROOT
from tests.deploy.units import NAMES, directives, unit_path

EXPOSURE = 2.0
"""Most that `systemd-analyze security` may find, of 10; without any directive it finds 9.6."""

YES = (
    *("NoNewPrivileges", "ProtectHome", "PrivateTmp", "PrivateIPC", "PrivateMounts", "ProtectClock"),
    *("ProtectControlGroups", "ProtectHostname", "ProtectKernelLogs", "ProtectKernelModules"),
    *("ProtectKernelTunables", "RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID"),
    *("LockPersonality", "RemoveIPC"),
)
OF_BOTH = {
    **{name: ["yes"] for name in YES},
    "CapabilityBoundingSet": [""],
    "AmbientCapabilities": [""],
    "SystemCallErrorNumber": ["EPERM"],
    "SystemCallArchitectures": ["native"],
    "ProtectSystem": ["strict"],
    "ProtectProc": ["invisible"],
    "RestrictAddressFamilies": ["AF_INET AF_INET6 AF_UNIX"],
    "KeyringMode": ["private"],
    "UMask": ["0077"],
    "LimitCORE": ["0"],
}
OF_ONE = {
    "adapter": {
        "User": ["antiphon-adapter"],
        "MemoryDenyWriteExecute": ["yes"],
        "PrivateDevices": ["yes"],
        "PrivateUsers": ["yes"],
        "SystemCallFilter": ["@system-service", "~@privileged @resources", "sched_setscheduler"],
        "IPAddressDeny": ["169.254.0.0/16 fd00:ec2::254/128"],
    },
    "worker": {
        "User": ["antiphon-worker"],
        "DevicePolicy": ["closed"],
        "SystemCallFilter": ["@system-service", "~@privileged @resources", "setpriority"],
        "IPAddressDeny": ["any"],
        "IPAddressAllow": ["localhost"],
    },
}

needs_systemd = pytest.mark.skipif(confined.SYSTEMD is None, reason="systemd-analyze is not installed")
needs_filters = pytest.mark.skipif(
    confined.SYSTEMD is None or confined.LIBRARY is None, reason=confined.MISSING
)


@pytest.mark.parametrize("name", NAMES)
def test_unit_confines_its_process_and_has_secrets_as_credentials_alone(name: str) -> None:
    found, words = directives(unit_path(name)), unit_path(name).read_text().split("=")
    for directive, values in {**OF_BOTH, **OF_ONE[name]}.items():
        assert found[directive] == values, directive
    created = re.findall(r"^u (\S+)", (DEPLOY / "systemd/antiphon-sysusers.conf").read_text(), re.MULTILINE)
    [user], [group] = found["User"], found["Group"]
    assert user == group
    assert user in created
    loaded = {given.partition(":")[0] for given in found["LoadCredential"]}
    assert loaded == set(re.findall(r"\${CREDENTIALS_DIRECTORY}/(\S+)", found["ExecStart"][0]))
    assert "Environment" not in found
    assert not {"ANTIPHON_WORKER_KEY", "ANTIPHON_CLIENT_SECRET_KEY"} & set(words)


@needs_systemd
@pytest.mark.parametrize("name", NAMES)
def test_systemd_accepts_the_unit_and_finds_little_exposure(name: str, tmp_path: Path) -> None:
    limit = [f"--threshold={EXPOSURE * 10:.0f}", "--offline=true"]
    words = ["systemd-analyze", "security", *limit, unit_path(name)]
    judged = subprocess.run(words, capture_output=True, text=True, check=False)
    assert judged.returncode == 0, judged.stdout
    unit = tmp_path / f"antiphon-{name}@.service"
    unit.write_text(unit_path(name).read_text().replace("/opt/antiphon/bin/antiphon", sys.executable))
    instance = tmp_path / f"antiphon-{name}@0.service"
    instance.symlink_to(unit)
    words = ["systemd-analyze", "verify", "--man=no", instance]
    told = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (told.stderr, told.returncode) == ("", 0)


PROBE = """
import ctypes, mmap, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)

def call(name, *arguments):
    if libc[name](*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)

attempts = {
    "map memory to write and execute": lambda: mmap.mmap(-1, 4096, prot=7),
    "make a user namespace": lambda: call("unshare", 0x10000000),
    "mount": lambda: call("mount", b"none", b"/tmp", b"tmpfs", 0, None),
    "trace a process": lambda: call("ptrace", 0, 0, 0, 0),
    "open a raw packet socket": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
    "open a netlink socket": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
    "give a file away": lambda: os.chown(sys.argv[1], 1, 1),
    "make a file setuid": lambda: os.chmod(sys.argv[1], 0o4755),
    "pin itself to a processor": lambda: os.sched_setaffinity(0, {0}),
    "load a BPF program": lambda: call("syscall", 321, 0, 0, 0),
    "load a kernel module": lambda: call("syscall", 313, 0, 0, 0),
    "reboot": lambda: call("reboot", 0),
    "open a stream socket": lambda: socket.socket().close(),
    "lower its priority": lambda: os.setpriority(os.PRIO_PROCESS, 0, 19),
    "schedule itself as a batch job": lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)),
    "schedule itself in real time": lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
}
for name, attempt in attempts.items():
    try:
        attempt()
    except OSError:
        print("refused:", name)
    else:
        print("allowed:", name)
print(open("/proc/self/status").read().partition("CapEff:")[2].split()[0])
"""
USUAL = {"open a stream socket"}
ALLOWED = {
    "adapter": USUAL | {"schedule itself as a batch job"},
    "worker": USUAL | {"map memory to write and execute", "lower its priority"},
}


@needs_filters
@pytest.mark.parametrize("name", NAMES)
def test_filters_of_the_unit_refuse_what_no_service_needs(name: str, tmp_path: Path) -> None:
    """Attacks: what somebody tries who can run code in an adapter or a worker."""
    file, probe = tmp_path / "file", tmp_path / "probe.py"
    file.touch()
    probe.write_text(PROBE)
    command = [sys.executable, "-m", "tests.deploy.confined", unit_path(name), sys.executable, probe, file]
    told = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.splitlines()
    assert {line.removeprefix("allowed: ") for line in told if line.startswith("allowed")} == ALLOWED[name]
    assert len(told) == 17
    assert int(told[-1], 16) == 0
