"""Boots systemd as the first process of a machine of its own, and proves there what a unit does.

    sudo python tests/systemd_machine/boot.py [--out FILE]

Needs root and systemd 245 or later, whatever this machine's own first process is. The machine is
a set of namespaces: this file system below a layer that takes all changes and is thrown away, its
own processes, network, host name and control groups. `proof.py` runs in it as a unit. It boots a
second time to see what starts with the machine. Prints what was seen as JSON; exit code 1 when
something was wrong.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SYSTEMD = Path("/lib/systemd/systemd")
BOOT_WITHIN_S = 900
PARTS = ("installed", "reloaded", "watched", "killed", "stopped", "refused", "booted", "removed")
# `/tmp` and home folders are not what a unit of the system sees: the program lies elsewhere.
PREFIX = Path("/opt/workhorse")
# Nothing but what a unit needs to be started.
TARGET = """[Unit]
Requires=basic.target
After=basic.target
Wants=proof.service
AllowIsolate=yes
"""
UNIT = """[Unit]
After=basic.target multi-user.target
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
ExecStart={python} {proof} {model_tests} {out} {boot}
StandardOutput=file:{out}/said-{boot}.txt
StandardError=inherit
TimeoutStartSec=600
"""
MACHINE = r"""
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 machine "$WORK"
mkdir "$WORK/changes" "$WORK/overlay" "$WORK/root"
mount -t overlay -o "lowerdir=/,upperdir=$WORK/changes,workdir=$WORK/overlay" overlay "$WORK/root"
root="$WORK/root"
mkdir -p "$root$PREFIX" "$root/proof" "$root/old"
mount --bind "$VENV" "$root$PREFIX"
mount --bind "$OUT" "$root/proof"
units="$root/etc/systemd/system"
rm -rf "$units"/*.wants
mkdir "$units/multi-user.target.wants"
ln -s /proof/proof.target /proof/proof.service "$units/"
# The kernel is shared: nothing here may set it, or load into it.
for name in systemd-sysctl systemd-modules-load systemd-remount-fs kmod-static-nodes; do
  ln -s /dev/null "$units/$name.service"
done
# Nor need it empty `/tmp`, which is another one already.
ln -sf /dev/null "$root/etc/tmpfiles.d/tmp.conf"
: > "$root/etc/machine-id"
for boot in 1 2; do
  cp "$OUT/proof-$boot.service" "$OUT/proof.service"
  target=proof.target
  if [ $boot = 2 ]; then
    target=multi-user.target
    ln -s /proof/proof.service "$units/multi-user.target.wants/"
  fi
  unshare --mount --pid --fork --kill-child --uts --ipc --net --cgroup bash -ec '
    root="$1"
    mount -t proc proc "$root/proc"
    mount --bind "$root/proc/sys" "$root/proc/sys"
    mount -o remount,bind,ro "$root/proc/sys"
    mount -t sysfs -o ro sysfs "$root/sys"
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
    mount -t tmpfs -o mode=755 run "$root/run"
    mount -t tmpfs -o mode=755 dev "$root/dev"
    mkdir "$root/dev/pts" "$root/dev/shm"
    mount -t devpts -o newinstance,mode=620,ptmxmode=666 devpts "$root/dev/pts"
    mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
    ln -s pts/ptmx "$root/dev/ptmx"
    ln -s /proc/self/fd "$root/dev/fd"
    for name in null zero full random urandom tty; do
      touch "$root/dev/$name"; mount --bind "/dev/$name" "$root/dev/$name"
    done
    hostname machine
    cd "$root"
    pivot_root . old
    umount -l /old
    exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin \
      "$2" --system --unit="$3" --show-status=no
  ' bash "$root" "$SYSTEMD" $target \
    </dev/null >>"$OUT/systemd.txt" 2>&1 || echo "systemd ended with $?" >>"$OUT/systemd.txt"
done
"""


def groups() -> Path:
    """The unified control groups of this machine."""
    for folder in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")):
        if (folder / "cgroup.controllers").exists():
            return folder
    sys.exit("there are no unified control groups here")


def end(group: Path) -> None:
    """End what runs in a control group, and remove it."""
    (group / "cgroup.kill").write_text("1")
    for _ in range(100):
        if "populated 0" in (group / "cgroup.events").read_text():
            break
        time.sleep(0.1)
    for folder, _, _ in sorted(os.walk(group), key=lambda one: -len(one[0])):
        Path(folder).rmdir()


def main() -> int:
    """Boot twice; 1 when anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="a file for what was seen")
    args = parser.parse_args()
    if os.geteuid() != 0 or not SYSTEMD.exists() or not shutil.which("unshare"):
        sys.exit("it takes root, systemd and unshare")
    group = groups() / f"workhorse-proof-{os.getpid()}"
    with tempfile.TemporaryDirectory() as folder:
        work, out = Path(folder) / "machine", Path(folder) / "proof"
        work.mkdir()
        out.mkdir()
        (out / "proof.target").write_text(TARGET)
        shutil.copy(HERE / "proof.py", out)
        for boot in (1, 2):
            words = {
                "python": PREFIX / "bin" / "python",
                "proof": "/proof/proof.py",
                "model_tests": HERE.parent / "models",
                "out": "/proof",
                "boot": boot,
            }
            wanted = "" if boot == 1 else "[Install]\nWantedBy=multi-user.target\n"
            (out / f"proof-{boot}.service").write_text(UNIT.format(**words) + wanted)
        group.mkdir()
        enter = f'echo $$ > {group}/cgroup.procs; exec unshare --mount bash -c "$MACHINE"'
        told = {"MACHINE": MACHINE, "WORK": work, "OUT": out, "VENV": sys.prefix}
        told |= {"PREFIX": PREFIX, "SYSTEMD": SYSTEMD}
        try:
            subprocess.run(
                ["bash", "-c", enter],
                env={**os.environ, **{name: str(value) for name, value in told.items()}},
                timeout=BOOT_WITHIN_S,
                check=False,
            )
        finally:
            end(group)
        seen: dict[str, dict[str, object]] = {}
        for boot in (1, 2):
            result = out / f"result-{boot}.json"
            seen |= json.loads(result.read_text()) if result.exists() else {}
        for name in ("systemd.txt", "said-1.txt", "said-2.txt", "journal-1.txt"):
            said = out / name
            if said.exists():
                sys.stderr.write(f"--- {name}\n{said.read_text(errors='replace')[-6000:]}\n")
    document = json.dumps(seen, indent=2, ensure_ascii=False)
    print(document)
    if args.out:
        args.out.write_text(document + "\n")
    # A machine that died in the middle has said nothing of what would have come.
    return 0 if all(seen.get(part, {}).get("good") for part in PARTS) else 1


if __name__ == "__main__":
    sys.exit(main())
