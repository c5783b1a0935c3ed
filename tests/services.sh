#!/usr/bin/env bash
# make services: what the tests need of Debian 12, as root; the tests start their own servers, on the loopback interface.
# `tests/services.sh full` installs what only nightly parts need, too.
set -euo pipefail
cd "$(dirname "$0")/.."

export DEBIAN_FRONTEND=noninteractive
apt=(apt-get -qq -o DPkg::Lock::Timeout=300 -o Dpkg::Options::=--force-unsafe-io)
# PostgreSQL's own service would run beside the tests'.
mkdir -p /etc/postgresql-common/createcluster.d
echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.d/hpcml-tests.conf
packages=(
  gcc libc6-dev                                                      # libraries that stand in for NVML and for a full disk
  slurmctld slurmd slurmdbd slurm-client munge mariadb-server        # Slurm with its accounting
  postgresql
  chromium                                                           # opens the reports
)
if [ "${1-}" = full ]; then
  packages+=(openmpi-bin libopenmpi-dev texlive-latex-recommended)
fi
"${apt[@]}" update
"${apt[@]}" install -y --no-install-recommends "${packages[@]}" >/dev/null
tests/cluster/apptainer/provision.sh # Apptainer, and a registry for it to pull from
