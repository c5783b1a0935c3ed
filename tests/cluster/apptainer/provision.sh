#!/usr/bin/env bash
# A real Apptainer and a registry's tools on Debian 12, as root: sid's packages with their own glibc below
# /opt/hpcml-apptainer, so that no library of the system changes. Whoever builds or runs is an ordinary user afterwards.
set -euo pipefail

prefix=/opt/hpcml-apptainer
user=hpcuser
mark=$prefix/complete

[ ! -e /dev/fuse ] || chmod 666 /dev/fuse # again after each boot
if [ -e "$mark" ] && "$prefix/usr/bin/apptainer" --version >/dev/null 2>&1 && command -v buildah >/dev/null; then
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt=(apt-get -qq -o DPkg::Lock::Timeout=300 -o Dpkg::Options::=--force-unsafe-io)
"${apt[@]}" update
"${apt[@]}" install -y --no-install-recommends \
  patchelf squashfs-tools squashfuse fuse-overlayfs fuse2fs fuse3 gocryptfs uidmap ca-certificates \
  buildah busybox-static docker-registry skopeo umoci >/dev/null

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists/partial,cache/archives/partial,etc,x}
# The archive that this machine uses already, asked for another suite.
archive=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' |
  awk '$2 !~ /-(updates|security)$/ && !seen {print $1; seen = 1}')
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive sid main" >"$work/etc/sources.list"
sid=(apt-get -qq -o "Dir::Etc::sourcelist=$work/etc/sources.list" -o Dir::Etc::sourceparts=/nonexistent
  -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache" -o Acquire::Check-Valid-Until=false
  -o Acquire::Languages=none -o APT::Sandbox::User=root)
"${sid[@]}" update
(cd "$work" && "${sid[@]}" download apptainer libc6 libseccomp2 libsqlite3-0)
for package in "$work"/*.deb; do dpkg -x "$package" "$work/x"; done

rm -rf "$prefix"
libraries=usr/lib/x86_64-linux-gnu
mkdir -p "$prefix"/{glibc,usr/bin,$libraries,usr/var/lib/apptainer/mnt/session}
cp -a "$work/x/$libraries"/lib{c,m,dl,rt,pthread,resolv,nss_dns,nss_files}.so.* "$prefix/glibc/"
cp -a "$work/x/$libraries"/{libseccomp.so.2,libsqlite3.so}* "$prefix/glibc/"
loader=$(find "$work/x/usr" -name ld-linux-x86-64.so.2 | head -n 1)
cp -L "$loader" "$prefix/glibc/ld-linux-x86-64.so.2"
cp -a "$work/x/usr/bin/apptainer" "$prefix/usr/bin/"
cp -a "$work/x/$libraries/apptainer" "$prefix/$libraries/"
cp -a "$work/x/etc" "$prefix/usr/etc"
ln -s ../etc "$prefix/usr/lib/etc" # the starter looks for its prefix one level too high under a multiarch folder
ln -s ../var "$prefix/usr/lib/var"
for program in "$prefix/usr/bin/apptainer" "$prefix/$libraries/apptainer/bin/starter"; do
  # RPATH and not RUNPATH: libsqlite3 would load the system's older libm.
  patchelf --force-rpath --set-interpreter "$prefix/glibc/ld-linux-x86-64.so.2" --set-rpath "$prefix/glibc" "$program"
done

id "$user" >/dev/null 2>&1 || useradd --create-home --shell /bin/bash "$user" # as tests/cluster/slurm does
for file in /etc/subuid /etc/subgid; do
  grep -q "^$user:" "$file" || echo "$user:200000:65536" >>"$file" # for %post as a root that is none
done
"$prefix/usr/bin/apptainer" --version
touch "$mark"
