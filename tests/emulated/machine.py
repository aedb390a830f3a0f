"""A PC in Bochs that boots a kernel of Debian's into a folder, and runs one command there."""

import os
import pty
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

PROCESSORS: Final = {
    "avx512": "corei7_skylake_x",
    "avx2": "corei7_haswell_4770",
    "sse": "corei5_lynnfield_750",
}
"""Models of Bochs. NumPy's own builds take SSE 4.2 at least."""

PACKAGES: Final = (
    "bochs bochsbios bochs-term vgabios isolinux syslinux-common xorriso e2fsprogs busybox-static cpio"
)
"""Of Debian, and `linux-image-amd64`, which is only unpacked."""

_MODULES: Final = (
    *("crc16", "crc32c_generic", "mbcache", "jbd2", "crct10dif_common", "crct10dif_generic", "crc-t10dif"),
    *("crc64", "crc64_rocksoft_generic", "crc64-rocksoft", "t10-pi", "scsi_common", "scsi_mod", "libata"),
    *("ata_piix", "sd_mod", "ext4"),
)
"""Of the kernel, in their order: what a disk takes."""

_LINUX: Final = (
    *("initrd=initrd", "console=ttyS0", "quiet", "mitigations=off", "nokaslr", "tsc=unstable", "lpj=1000000"),
    # No XSAVEC and XSAVES: the sizes that Bochs 2.7 gives do not agree, and Linux would go without AVX.
    "clearcpuid=321,323",
    # Nothing moves on the screen: nobody looks at it, and Bochs waits for who does.
    *("vt.global_cursor_default=0", "consoleblank=0"),
)
_BOOT: Final = f"""\
default linux
prompt 0
label linux
 kernel vmlinuz
 append {" ".join(_LINUX)}
"""

_MACHINE: Final = """\
megs: 2048
cpu: model={processor}, count=1, ips=50000000
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata1: enabled=1, ioaddr1=0x170, ioaddr2=0x370, irq=15
ata0-master: type=disk, path=disk, mode=flat, cylinders={cylinders}, heads=16, spt=63, translation=auto
ata1-master: type=cdrom, path=cd.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=serial
log: log
display_library: term
clock: sync=none
panic: action=fatal
error: action=ignore
info: action=ignore
"""
_CYLINDER: Final = 16 * 63 * 512
_SPARE: Final = 1.15
"""Of a disk, for what a file system needs itself."""
_LOOK_S: Final = 1.0
_SCREEN: Final = 4000
_ENDED: Final = re.compile(r"^ended with (\d+)\s*$", re.MULTILINE)


class NoEnd(Exception):
    """The command has not ended; what is known of it."""


class Machine:
    """Everything is made in `folder`. Raises `subprocess.CalledProcessError` where a tool fails."""

    def __init__(self, folder: Path, processor: str) -> None:
        self._folder = folder
        self._processor = PROCESSORS[processor]

    def build(self, root: Path, command: Sequence[str]) -> None:
        """Makes a disk of the folder `root`, where a shell runs the lines of `command`, and what boots it."""
        busybox = Path("/bin/busybox").read_bytes()
        for path in (root, early := self._folder / "early"):
            for name in ("bin", "proc", "dev", "run", "disk"):
                (path / name).mkdir(parents=True, exist_ok=True)
            (path / "bin/busybox").write_bytes(busybox)
            (path / "bin/busybox").chmod(0o755)
        (root / "command").write_text("\n".join(command) + "\n")
        kernel = self._unpack_kernel()
        (early / "init").write_bytes((Path(__file__).parent / "init").read_bytes())
        (early / "init").chmod(0o755)
        modules = early / "modules"
        modules.mkdir()
        (modules / "order").write_text(" ".join(_MODULES))
        for name in _MODULES:
            (found,) = kernel.glob(f"lib/modules/*/kernel/**/{name}.ko")
            (modules / found.name).write_bytes(found.read_bytes())
        cd = self._folder / "cd"
        cd.mkdir()
        (vmlinuz,) = kernel.glob("boot/vmlinuz-*")
        (cd / "vmlinuz").write_bytes(vmlinuz.read_bytes())
        (cd / "isolinux.cfg").write_text(_BOOT)
        for path in ("/usr/lib/ISOLINUX/isolinux.bin", "/usr/lib/syslinux/modules/bios/ldlinux.c32"):
            (cd / Path(path).name).write_bytes(Path(path).read_bytes())
        self._run("sh", "-c", "find . | cpio -o -H newc --quiet > ../cd/initrd", at="early")
        self._run(
            *("xorriso", "-as", "mkisofs", "-quiet", "-o", "cd.iso", "-b", "isolinux.bin", "-c", "boot.cat"),
            *("-no-emul-boot", "-boot-load-size", "4", "-boot-info-table", "cd"),
        )
        self._make_disk(root)

    def _unpack_kernel(self) -> Path:
        told = subprocess.run(
            ["apt-cache", "depends", "linux-image-amd64"], check=True, capture_output=True, text=True
        )
        found = re.search(r"Depends: (linux-image-\S+)", told.stdout)
        assert found is not None, told.stdout
        self._run("apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", found[1])
        (package,) = self._folder.glob("linux-image-*.deb")
        self._run("dpkg-deb", "-x", package.name, "kernel")
        return self._folder / "kernel"

    def _make_disk(self, root: Path) -> None:
        size = sum(path.lstat().st_size // 4096 * 4096 + 8192 for path in root.rglob("*"))
        cylinders = int(size * _SPARE) // _CYLINDER + 1
        disk = self._folder / "disk"
        disk.touch()
        os.truncate(disk, cylinders * _CYLINDER)
        self._run("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", str(root), disk.name)
        (self._folder / "bochsrc").write_text(_MACHINE.format(processor=self._processor, cylinders=cylinders))

    def _run(self, *command: str, at: str = ".") -> None:
        subprocess.run(command, cwd=self._folder / at, check=True)

    def run(self, patience_s: float) -> int:
        """Boots and shows what the command says; its exit code. Raises `NoEnd` without one."""
        serial = self._folder / "serial"
        serial.touch()
        process, terminal = pty.fork()
        if process == 0:
            os.chdir(self._folder)
            os.environ["TERM"] = "xterm"
            os.execvp("bochs-bin", ["bochs-bin", "-q", "-f", "bochsrc"])
        os.set_blocking(terminal, False)
        shown, screen, ends = 0, b"", time.monotonic() + patience_s
        try:
            while time.monotonic() < ends:
                time.sleep(_LOOK_S)
                said = serial.read_text(errors="replace")
                print(said[shown:], end="", flush=True)
                shown = len(said)
                if found := _ENDED.search(said):
                    return int(found[1])
                try:
                    screen = (screen + os.read(terminal, 2**16))[-_SCREEN:]
                except BlockingIOError:
                    continue
                except OSError:  # Bochs has ended, and its terminal is closed
                    raise NoEnd(screen.decode(errors="replace")) from None
                if b"<bochs:1>" in screen:  # Debian's stops in its debugger first
                    screen = b""
                    os.write(terminal, b"c\n")
            raise NoEnd(f"not within {patience_s:g} s")
        finally:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            os.close(terminal)
