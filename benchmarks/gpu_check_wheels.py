"""Collects the wheels that `make gpu-check` needs beside Python 3.12 and torch, for a machine without a network.

python benchmarks/gpu_check_wheels.py --list      # what is needed
python benchmarks/gpu_check_wheels.py wheels      # download and build them into a folder, for Linux on x86-64

The folder is then laid beside the checkout on that machine. Fails where it is larger than it may be.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
LARGEST_MB = 60.0  # 10^6 bytes, all together
NEEDLESS = ("plotly",)  # hpcml imports it for reports in HTML alone
OF_THE_TESTS = ("hypothesis", "pytest")
SOURCE_ONLY = ("antlr4-python3-runtime==4.9.*", "spython")  # PyPI has no wheels of them; the first is Hydra's
PURE = "sqlalchemy"  # without its compiled parts it has half the size, and is fast enough
# what a machine with glibc 2.28 takes
PLATFORMS = ("2_28", "2_27", "2_24", "2_17")
OLD_PLATFORMS = ("manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64")


def needed() -> list[str]:
    """Return what hpcml and its tests marked gpu need, as pyproject.toml says it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    of_tests = [wanted for wanted in project["dependency-groups"]["test"] if _name(wanted) in OF_THE_TESTS]
    return [wanted for wanted in project["project"]["dependencies"] if _name(wanted) not in NEEDLESS] + of_tests


def _name(requirement: str) -> str:
    found = re.match(r"[\w-]+", requirement)
    return found[0] if found else ""


def collect(folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    limited = ["--constraint", str(CONSTRAINTS)]
    subprocess.run([*pip, "wheel", "--no-deps", *limited, "--wheel-dir", str(folder), *SOURCE_ONLY], check=True)
    platforms = [*(f"manylinux_{version}_x86_64" for version in PLATFORMS), *OLD_PLATFORMS]
    target = ["--python-version", "3.12", "--implementation", "cp", *(f"--platform={name}" for name in platforms)]
    where = ["--only-binary=:all:", "--find-links", str(folder), "--dest", str(folder)]
    subprocess.run([*pip, "download", *limited, *target, *where, *needed()], check=True)
    (compiled,) = folder.glob(f"{PURE}-*.whl")
    version = compiled.name.split("-")[1]
    compiled.unlink()
    any_machine = ["--python-version", "3.12", "--implementation", "py", "--abi", "none", "--platform", "any"]
    subprocess.run([*pip, "download", "--no-deps", *any_machine, *where, f"{PURE}=={version}"], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="where the wheels are put; it must be empty or new")
    parser.add_argument("--list", action="store_true", help="print what is needed; nothing is downloaded")
    options = parser.parse_args()
    if options.list:
        print("\n".join(needed()))
        return 0
    if options.folder is None or (options.folder.exists() and any(options.folder.iterdir())):
        print("gpu_check_wheels: name a folder that is empty or new", file=sys.stderr)
        return 2
    collect(options.folder)
    wheels = sorted(options.folder.glob("*.whl"))
    size_mb = sum(wheel.stat().st_size for wheel in wheels) / 1e6
    print(f"{len(wheels)} wheels, {size_mb:.1f} MB, in {options.folder}")
    if size_mb > LARGEST_MB:
        print(f"gpu_check_wheels: more than the {LARGEST_MB:g} MB that were meant to be enough", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
