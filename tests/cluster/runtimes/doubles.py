#!/usr/bin/python3
"""A double of Slurm's pyxis, made from documentation: no real one was ever seen.

Called as ``srun``, it hands all but pyxis's options to the real srun. It reads options as the real one does (args.c),
refuses what that refuses, and starts the program in the image for real: namespaces, mounts and chroot. Standard library
of the host's Python alone.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def fail(words, status=1):
    print(words, file=sys.stderr)
    sys.exit(status)


def image_environ(tree):
    path = Path(tree, "etc", "environment")
    lines = path.read_text().splitlines() if path.exists() else []
    return dict(line.partition("=")[::2] for line in lines if line)


def contain(image, argv, *, binds, environ, cwd="/", writable=False, image_wins=False, kept=()):
    """Become *argv* in *image*, a squashfs file: in namespaces of its own, where mounts end with the process."""
    spec = {"image": image, "argv": argv, "binds": binds, "environ": environ, "cwd": cwd, "writable": writable}
    spec |= {"image_wins": image_wins, "kept": list(kept)}
    folder = tempfile.mkdtemp(prefix="double-", dir="/var/tmp")
    Path(folder, "spec").write_text(json.dumps(spec))
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    os.execv("/usr/bin/unshare", ["unshare", *user, "--mount", "/usr/bin/python3", __file__, "INSIDE", folder])


def mount(*words):
    subprocess.run(["/usr/bin/mount", *words], check=True)


def inside(folder):
    spec = json.loads(Path(folder, "spec").read_text())
    mount("-t", "tmpfs", "tmpfs", folder)  # what is unpacked and written goes with the namespace
    tree = Path(folder, "root")
    unpacked = subprocess.run(
        ["/usr/bin/unsquashfs", "-quiet", "-no-progress", "-no-xattrs", "-d", str(tree), spec["image"]],
        check=False,
        stdout=subprocess.DEVNULL,
    )
    if unpacked.returncode != 0:
        fail(f"{spec['image']} cannot be unpacked", 125)
    mount("--bind", str(tree), str(tree))
    for name in ("proc", "sys", "dev"):
        mount("--rbind", f"/{name}", str(tree / name))
    for source, destination, read_only in spec["binds"]:
        target = tree / destination.lstrip("/")
        if Path(source).is_dir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
        mount("--rbind", source, str(target))
        if read_only:
            mount("-o", "remount,bind,ro", str(target))
    if not spec["writable"]:
        mount("-o", "remount,bind,ro", str(tree))
    of_image = image_environ(tree)
    environ = {"PATH": "/usr/bin:/bin", **of_image, **spec["environ"]}
    if spec["image_wins"]:
        environ |= {name: value for name, value in of_image.items() if name not in spec["kept"]}
    os.chroot(tree)
    try:
        os.chdir(spec["cwd"])
    except OSError as error:
        fail(f"{spec['cwd']}: {error.strerror}", 127)
    try:
        os.execvpe(spec["argv"][0], spec["argv"], environ)
    except OSError as error:
        fail(f"{spec['argv'][0]}: {error.strerror}", 127)


def is_squashfs(path):
    try:
        return Path(path).is_file() and Path(path).read_bytes()[:4] == b"hsqs"
    except OSError:
        return False


def pyxis(words):
    """Read what the plugin would read, hand the rest to the real srun, and let its task enter the image."""
    options, ours = [], {}
    flags = {"writable": False}
    while words and words[0].startswith("-"):
        name, _, value = words[0].partition("=")
        if name in ("--container-image", "--container-mounts", "--container-workdir", "--container-env"):
            if not value:
                fail(f"srun: error: pyxis: {name}: argument required")
            if name in ours:
                fail(f"srun: error: pyxis: {name} specified multiple times")
            ours[name] = value
        elif name in ("--container-writable", "--container-readonly"):
            flags["writable"] = name == "--container-writable"
        elif name.startswith(("--container-", "--no-container-")):
            if name not in ("--no-container-entrypoint", "--no-container-remap-root"):
                fail(f"srun: unrecognized option '{words[0]}'")
        else:
            options.append(words[0])
        words = words[1:]
    if "--help" in options:
        print("      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH\n  [pyxis] the image to use")
        return
    real = next(
        path for folder in os.environ["PATH"].split(":") if (path := shutil.which("srun", path=folder)) is not None
        and not Path(path).samefile(sys.argv[0])
    )  # fmt: skip
    if not ours:
        os.execv(real, ["srun", *options, *words])
    binds = []
    for each in ours.get("--container-mounts", "").split(","):
        source, _, rest = each.partition(":")
        destination, _, mode = (rest or source).partition(":")
        if not source.startswith("/") or not destination.startswith("/"):
            fail(f"srun: error: pyxis: could not add mount entry: {each}")
        binds.append((source, destination, "ro" in mode.split("+")))
    spec = {
        "image": ours["--container-image"],
        "binds": binds,
        "cwd": ours.get("--container-workdir", "/"),
        "kept": ours.get("--container-env", "").split(","),
        **flags,
    }
    os.execv(real, ["srun", *options, "/usr/bin/python3", __file__, "TASK", json.dumps(spec), *words])


def task(spec, argv):
    if not is_squashfs(spec["image"]):
        fail(f"slurmstepd: error: pyxis: failed to import docker image: {spec['image']}")
    contain(spec.pop("image"), argv, environ=dict(os.environ), image_wins=True, **spec)


if sys.argv[1:2] == ["INSIDE"]:
    inside(sys.argv[2])
elif sys.argv[1:2] == ["TASK"]:
    task(json.loads(sys.argv[2]), sys.argv[3:])
else:
    pyxis(sys.argv[1:])
