#!/usr/bin/env bash
# Builds the package for one Debian release, in a root of that release which is removed again:
#   sudo deploy/build-deb.sh bookworm|trixie [DIRECTORY]
# writes DIRECTORY/tickscope_VERSION_amd64.deb (default: here). Needs mmdebstrap, and 2 GB in TMPDIR (/tmp). The archive is
# the one that this host's apt uses. Python packages come from PyPI, in the newest versions that setup.py takes; PIP_CONSTRAINT,
# a file such as /usr/share/doc/tickscope/requirements.txt of an earlier build, keeps their versions. Builds of one
# commit with the same versions are equal, byte for byte.
set -euo pipefail

[ $# -ge 1 ] || {
	echo "usage: $0 SUITE [DIRECTORY]" >&2
	exit 2
}
suite=$1 out=$(realpath "${2:-.}") top=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
umask 022
unset PIP_FIND_LINKS # of this host
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$top" log -1 --format=%ct)}
# shellcheck disable=SC1091
own=$(. /etc/os-release && echo "$VERSION_CODENAME")
# shellcheck disable=SC2016
archive=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' | sed -n "s/^$own //p;T;q")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The sources and what pip needs of this host: its certificates, and its settings by PIP_*.
tar -C "$top" --exclude=__pycache__ -cf "$work/sources.tar" --transform 's,^,build/,' \
	README.md CHANGELOG.md LICENSE setup.py pyproject.toml agent bpf exporters dashboards deploy docs
: >"$work/constraint.txt"
[ -z "${PIP_CONSTRAINT:-}" ] || cp "$PIP_CONSTRAINT" "$work/constraint.txt"
export SOURCE_DATE_EPOCH PIP_CONSTRAINT=/tmp/constraint.txt

# shellcheck disable=SC2016 # mmdebstrap expands $1
mmdebstrap --quiet --variant=apt --format=null --include=ca-certificates,debhelper,man-db,python3-venv \
	--customize-hook='tar-in "'"$work"'/sources.tar" /' \
	--customize-hook='copy-in "'"$work"'/constraint.txt" /tmp' \
	--customize-hook='copy-in /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs' \
	--customize-hook='chroot "$1" /build/deploy/debian/build' \
	--customize-hook='sync-out /out "'"$out"'"' \
	"$suite" - ${archive:+"$archive"}
