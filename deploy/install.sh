# shellcheck shell=bash
# Sourced by run.sh and test.sh: install_for run|demo|lab|test. Where nothing is missing it returns in a fifth of a second.
#
# The package goes into a virtual environment under /opt, not beside the sources: the agent gives up root, and a clone in
# somebody's home may not be readable to it. BCC comes from Debian (python3-bpfcc); PyPI's `bcc` is an unrelated package.

TICKSCOPE_HOME=${TICKSCOPE_HOME:-/opt/tickscope}
TICKSCOPE_VENV=$TICKSCOPE_HOME/venv
TICKSCOPE_SOURCES=(setup.py agent bpf exporters dashboards)

say() { printf 'tickscope: %s\n' "$*" >&2; }

fail() { # message, remedy, status
	say "$1"
	printf '  try: %s\n' "$2" >&2
	exit "$3"
}

need_root() {
	[ "$(id -u)" -eq 0 ] || fail "installing needs root: $1" "sudo $0" 5
}

# Runs apt-get such that the services of new packages are neither started now nor at the next boot.
apt_install() (
	policy=/usr/sbin/policy-rc.d
	if [ ! -e $policy ]; then
		trap 'rm -f $policy' EXIT
		printf '#!/bin/sh\nexit 101\n' >$policy
		chmod 755 $policy
	fi
	export DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes
	apt-get -qq -o DPkg::Lock::Timeout=300 update || exit
	apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@" >/dev/null || exit
	for package in "$@"; do
		case $package in
		redis-server | nginx-light | haproxy | nats-server | postgresql | prometheus | prometheus-alertmanager) units=("${package%-light}.service") ;;
		etcd-server) units=(etcd.service etcd2.service) ;;
		rabbitmq-server) units=(rabbitmq-server.service epmd.socket epmd.service) ;;
		*) continue ;;
		esac
		if command -v systemctl >/dev/null; then systemctl -q disable "${units[@]}" 2>/dev/null || true; fi
	done
)

install_packages() {
	local installed missing=() package
	installed=" $(dpkg-query -W -f '${db:Status-Status}=${Package} ' "$@" 2>/dev/null || true)"
	for package in "$@"; do
		[[ $installed == *" installed=$package "* ]] || missing+=("$package")
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	command -v apt-get >/dev/null || fail "this script installs with apt, and there is none here" "install by hand: ${missing[*]}" 1
	need_root "Debian packages ${missing[*]}"
	say "installing Debian packages: ${missing[*]}"
	apt_install "${missing[@]}" || fail "apt could not install ${missing[*]}" "see apt's message above (is the network there?), then run this again" 1
}

pip_install() {
	"$TICKSCOPE_VENV/bin/python" -m pip -q install --disable-pip-version-check --root-user-action ignore "$@"
}

# The agent runs without docstrings, which take 4 MB of memory, if all modules are compiled for that (agent/common/lean.py).
compile_without_docstrings() {
	local compiled=$TICKSCOPE_VENV/pycache modules
	mapfile -t modules < <("$TICKSCOPE_VENV/bin/python" -c 'import sysconfig as s; print(*map(s.get_path, ("stdlib", "purelib")), sep="\n")')
	# A module that cannot be compiled, such as a template, is none that the agent imports. Variables, since the workers of
	# Python 3.13 do not inherit -X.
	PYTHONNODEBUGRANGES=1 PYTHONPYCACHEPREFIX=$compiled "$TICKSCOPE_VENV/bin/python" -m compileall -q -j0 -o 2 "${modules[@]}" >/dev/null 2>&1 || true
}

# The service cannot: its /etc is read-only.
create_user() { "$TICKSCOPE_VENV/bin/python" -I -c 'from agent.posix.privilege import service_user; service_user()'; }

# pip builds in the directory it installs from, so it gets a copy of the sources and the clone stays as it is.
install_environment() ( # extra
	extra=$1 command=/usr/local/bin/tickscope
	code=$TICKSCOPE_HOME/stamp.code deps=$TICKSCOPE_HOME/stamp.deps${extra:+.$extra}
	python=$(/usr/bin/python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
	wanted_deps="$python $(sha256sum setup.py)"
	wanted_code=$(find "${TICKSCOPE_SOURCES[@]}" -type f ! -name '*.pyc' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum)
	current() { [ -x "$TICKSCOPE_VENV/bin/tickscope" ] && [ "$(cat "$1" 2>/dev/null)" = "$2" ]; }
	if [ -z "$extra" ] && current "$TICKSCOPE_HOME/stamp.deps.test" "$wanted_deps"; then deps=$TICKSCOPE_HOME/stamp.deps.test; fi # it has all and more
	if current "$deps" "$wanted_deps" && current "$code" "$wanted_code"; then return; fi

	need_root "$TICKSCOPE_VENV"
	umask 022 # the agent's own user reads it
	mkdir -p "$TICKSCOPE_HOME"
	exec 9>"$TICKSCOPE_HOME/lock"
	flock 9
	copy=$(mktemp -d)
	trap 'rm -rf "$copy"' EXIT
	cp -r README.md pyproject.toml "${TICKSCOPE_SOURCES[@]}" "$copy"
	if ! current "$deps" "$wanted_deps"; then
		say "installing Python packages into $TICKSCOPE_VENV (a minute or two)"
		if [ ! -d "$TICKSCOPE_VENV/lib/$python/site-packages/pip" ]; then /usr/bin/python3 -m venv --clear "$TICKSCOPE_VENV"; fi
		{ pip_install 'setuptools>=68' wheel && pip_install --no-build-isolation "$copy${extra:+[$extra]}"; } ||
			fail "pip could not install the dependencies" "see pip's message above (is the network there?), then run this again" 1
	elif ! current "$code" "$wanted_code"; then
		say "installing this checkout into $TICKSCOPE_VENV"
		pip_install --no-deps --no-build-isolation --force-reinstall "$copy" ||
			fail "pip could not install this checkout" "see pip's message above, then run this again" 1
	fi
	compile_without_docstrings
	create_user
	rm -rf "${TICKSCOPE_HOME:?}/docs"
	cp -r docs "$TICKSCOPE_HOME/docs" # the unit and people refer to them
	printf '%s\n' "$wanted_deps" >"$deps"
	printf '%s\n' "$wanted_code" >"$code"
	if [ "$TICKSCOPE_HOME" = /opt/tickscope ] && [ ! -e "$command" ]; then ln -sf "$TICKSCOPE_VENV/bin/tickscope" "$command"; fi
)

install_for() {
	if [ "$TICKSCOPE_HOME" = /opt/tickscope ] && [ -e /usr/lib/tickscope/venv ]; then
		fail "tickscope is installed as a package here" "tickscope, the command of the package; or apt remove tickscope; or TICKSCOPE_HOME=/opt/mine $0, which installs beside it" 1
	fi
	local packages=(python3-bpfcc python3-venv passwd) extra=
	case $1 in
	demo) packages+=(redis-server openssl) ;;
	lab | test) packages+=(redis-server openssl nginx-light iproute2 util-linux mount e2fsprogs) ;;
	esac
	if [ "$1" != run ] && ! command -v go >/dev/null; then packages+=(golang-go golang-golang-x-time-dev ca-certificates); fi
	if [ "$1" = test ]; then
		packages+=(bindfs binutils buildah chromium curl etcd-server g++ gcc gdb groff-base haproxy jsonnet less libc6-dev libnginx-mod-http-lua libssl-dev mmdebstrap musl-tools nats-server netbase postgresql procps prometheus prometheus-alertmanager qemu-system-x86 rabbitmq-server systemd systemd-container xz-utils)
		command -v npm >/dev/null || packages+=(nodejs npm)
		PATH=$PATH:${HOME:-/root}/.cargo/bin command -v rustc >/dev/null || packages+=(rustc)
		command -v java >/dev/null || packages+=(default-jdk-headless)
		command -v mvn >/dev/null || packages+=(maven)
		extra='test'
	fi
	install_packages "${packages[@]}"
	install_environment "$extra"
}
