# shellcheck shell=bash
# Sourced by run.sh and test.sh: install_for run|demo|test. A second call finds its stamp and returns in milliseconds.
#
# The package goes into a virtual environment under /opt, not beside the sources: the agent gives up root, and a clone in
# somebody's home may not be readable to it. BCC comes from Debian (python3-bpfcc); PyPI's `bcc` is an unrelated package.

TICKSCOPE_HOME=${TICKSCOPE_HOME:-/opt/tickscope}
TICKSCOPE_VENV=$TICKSCOPE_HOME/venv

say() { printf 'tickscope: %s\n' "$*" >&2; }

fail() { # message, remedy, status
	say "$1"
	printf '  try: %s\n' "$2" >&2
	exit "$3"
}

need_root() {
	[ "$(id -u)" -eq 0 ] || fail "installing needs root" "sudo $0" 5
}

# Debian packages that are not installed yet, without starting the services that some of them bring.
install_packages() {
	local missing=() package policy=/usr/sbin/policy-rc.d made=
	for package in "$@"; do
		dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	need_root
	command -v apt-get >/dev/null || fail "this script installs with apt, and there is none here" "install by hand: ${missing[*]}" 1
	say "installing Debian packages: ${missing[*]}"
	if [ ! -e $policy ]; then
		printf '#!/bin/sh\nexit 101\n' >$policy
		chmod +x $policy
		made=yes
	fi
	local ok=yes
	{ apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null; } || ok=
	if [ -n "$made" ]; then rm -f $policy; fi
	[ -n "$ok" ] || fail "apt could not install ${missing[*]}" "see its message above; then run this again" 1
}

sources_hash() {
	find setup.py agent bpf exporters dashboards -type f ! -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum | sha256sum | cut -d' ' -f1
}

# The virtual environment: dependencies when setup.py changes, our own package when any source does.
install_environment() { # extra
	local extra=$1 wanted_deps wanted_code stamp=$TICKSCOPE_HOME/stamp
	wanted_deps="$extra $(sha256sum setup.py | cut -d' ' -f1) $(/usr/bin/python3 -V)"
	wanted_code=$(sources_hash)
	if [ ! -x "$TICKSCOPE_VENV/bin/python" ] || ! grep -qxF "$wanted_deps" "$stamp.deps" 2>/dev/null; then
		need_root
		say "installing Python packages into $TICKSCOPE_VENV (a minute or two)"
		mkdir -p "$TICKSCOPE_HOME"
		[ -x "$TICKSCOPE_VENV/bin/python" ] || /usr/bin/python3 -m venv "$TICKSCOPE_VENV"
		"$TICKSCOPE_VENV/bin/python" -m pip -q install --disable-pip-version-check setuptools wheel ".${extra:+[$extra]}" ||
			fail "pip could not install the dependencies" "see its message above; then run this again" 1
		printf '%s\n' "$wanted_deps" >>"$stamp.deps"
		printf '%s\n' "$wanted_code" >"$stamp.code"
	elif [ "$(cat "$stamp.code" 2>/dev/null)" != "$wanted_code" ]; then
		need_root
		"$TICKSCOPE_VENV/bin/python" -m pip -q install --disable-pip-version-check --no-deps --no-build-isolation --force-reinstall . ||
			fail "pip could not install this checkout" "see its message above; then run this again" 1
		printf '%s\n' "$wanted_code" >"$stamp.code"
	fi
	rm -rf build ./*.egg-info
}

install_for() {
	local packages=(python3-bpfcc python3-venv passwd) extra=
	case $1 in
	demo | test) packages+=(redis-server openssl) ;;
	esac
	if [ "$1" != run ] && ! command -v go >/dev/null; then packages+=(golang-go golang-golang-x-time-dev); fi
	if [ "$1" = test ]; then
		packages+=(iproute2 procps util-linux mount gcc libc6-dev binutils nginx-light)
		extra=test
	fi
	install_packages "${packages[@]}"
	install_environment "$extra"
}
