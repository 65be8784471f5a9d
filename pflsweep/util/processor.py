"""Name and vendor of this machine's processor."""

import platform
from functools import cache
from pathlib import Path


def name() -> str:
    """Return the processor's name."""
    # platform.processor() is empty on many Linux systems
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def vendor() -> str:
    """Return the processor's vendor, such as AuthenticAMD or GenuineIntel, or "" if it is not known."""
    return _cpuinfo("vendor_id")


@cache
def _cpuinfo(field: str) -> str:
    """Return a field of the first processor in /proc/cpuinfo, or "" on systems without that file."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), "")
