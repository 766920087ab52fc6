# Shared by scripts/setup, scripts/demo, scripts/bench and scripts/test: system packages, the venv, the build.
# shellcheck shell=bash
#
# Everything ends up in the checkout (.venv, build); only Debian packages need root, and only
# those that are missing.  Nothing is written when nothing has changed.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=$PWD/.venv
STAMPS=$VENV/uvs-setup
BUILD=build/venv

# To build and to run a lab.
RUN_PACKAGES=(gcc libc6-dev libnetfilter-queue-dev iproute2 iptables ipset nftables kmod procps)
# To test besides.
TEST_PACKAGES=(busybox-static chromium clang cpio curl debootstrap ethtool git iperf3 iputils-ping ipvsadm
	keepalived ldirectord mandoc netcat-openbsd openssl shellcheck systemd tcpdump traceroute vagrant vagrant-libvirt vsftpd xz-utils)
# To measure, and to test that measuring works: what uvs is compared with, and what makes the traffic.
BENCH_PACKAGES=(haproxy iperf3 libnginx-mod-stream nginx wrk)
# The virtual machine of tests/kernel, on the architecture that has one.
VM_PACKAGES=(linux-image-amd64 qemu-system-x86)

say() { printf '%s\n' "$*"; }

die() {
	printf '%s: %s\n' "${0#"$PWD"/}" "$*" >&2
	exit 1
}

# require_debian: end unless this is a system whose package names we know.
require_debian() {
	local id='' version='' name='this system'
	if [[ -r /etc/os-release ]]; then
		# shellcheck disable=SC1091
		eval "$(. /etc/os-release; printf 'id=%q version=%q name=%q' "${ID-}" "${VERSION_ID-}" \
			"${PRETTY_NAME-$name}")"
	fi
	case $id:${version%%.*} in
	debian:12 | debian:13 | debian:) ;;
	ubuntu:24) say "note: $name is untested; Debian 12 and 13 are what is known to work" ;;
	*) die "$name is not supported: use Debian 12 or 13 (docs/how-to/run-a-director.md lists what to install elsewhere)" ;;
	esac
	command -v apt-get dpkg-query >/dev/null || die "apt-get and dpkg-query are needed"
}

# as_root CMD...: directly, or by sudo.
as_root() {
	if [[ $(id -u) == 0 ]]; then "$@"; else sudo "$@"; fi
}

# missing_packages NAME...: those that dpkg does not have installed, into the array `missing`.
missing_packages() {
	local have
	have=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null || true)
	missing=()
	local p
	for p in "$@"; do
		grep -qx "installed $p" <<<"$have" || missing+=("$p")
	done
}

# install_packages NAME...: the missing ones, from the lists at hand or else from fresh ones.
install_packages() {
	local missing log status=0
	missing_packages "$@"
	((${#missing[@]})) || return 0
	[[ $(id -u) == 0 ]] || command -v sudo >/dev/null ||
		die "Debian packages are missing; have them installed as root: apt-get install ${missing[*]}"
	say "installing Debian packages: ${missing[*]}"
	log=$(mktemp)
	local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq)
	local install=("${apt[@]}" install -y --no-install-recommends "${missing[@]}")
	as_root "${install[@]}" >"$log" 2>&1 </dev/null || {
		as_root "${apt[@]}" update >>"$log" 2>&1 </dev/null || true
		as_root "${install[@]}" >>"$log" 2>&1 </dev/null || status=1
	}
	((status == 0)) || {
		tail -n 20 "$log" >&2
		rm -f "$log"
		die "apt-get could not install: ${missing[*]}"
	}
	rm -f "$log"
	# Their packages start them on this machine; the tests start their own in namespaces.
	local p
	for p in haproxy keepalived ldirectord nginx vsftpd; do
		if [[ " ${missing[*]} " == *" $p "* && -d /run/systemd/system ]]; then
			as_root systemctl -q disable --now "$p" || true
		fi
	done
}

# find_python: PYTHON, or the system's own, or the one on PATH, if it is new enough.
find_python() {
	local p
	for p in ${PYTHON:+"$PYTHON"} /usr/bin/python3 python3; do
		if "$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
			PYTHON=$(command -v "$p")
			return
		fi
		[[ -z ${PYTHON-} ]] || die "PYTHON=$PYTHON is not Python 3.11 or newer"
	done
	die "Python 3.11 or newer is needed: apt-get install python3"
}

# python_packages: what Debian splits off its Python, if this one lacks it.
python_packages() {
	"$PYTHON" - <<-'PY'
		import importlib.util, os, sysconfig
		if not all(importlib.util.find_spec(m) for m in ("venv", "ensurepip")):
		    print("python3-venv")
		if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
		    print("python3-dev")
	PY
}

# requirements EXTRA...: what pyproject.toml asks for to build, to run, and by its extras.
requirements() {
	"$VENV/bin/python" - "$@" <<-'PY'
		import sys, tomllib
		with open("pyproject.toml", "rb") as f:
		    project = tomllib.load(f)
		wanted = project["build-system"]["requires"] + project["project"]["dependencies"] + ["ninja"]
		for extra in sys.argv[1:]:
		    wanted += project["project"]["optional-dependencies"][extra]
		print("\n".join(dict.fromkeys(wanted)))
	PY
}

# stamp_of FILE-OR-FOLDER...: one hash over names and contents.
stamp_of() {
	find "$@" -type f ! -name '*.pyc' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum
}

# quietly CMD...: its output only if it fails.
quietly() {
	local log
	log=$(mktemp)
	if ! "$@" >"$log" 2>&1 </dev/null; then
		cat "$log" >&2
		rm -f "$log"
		die "failed: $*"
	fi
	rm -f "$log"
}

# is_editable: a developer's `pip install -e .` rebuilds by itself: leave it alone.
is_editable() {
	grep -qs '"editable": *true' "$VENV"/lib/python3*/site-packages/uvs-*.dist-info/direct_url.json
}

# setup LEVEL: LEVEL is `run`, `bench` or `test`.
setup() {
	local level=$1 extras=(lab) wanted packages=("${RUN_PACKAGES[@]}")
	require_debian
	[[ $level == run ]] || packages+=("${BENCH_PACKAGES[@]}")
	[[ $level != bench ]] || extras+=(bench)
	if [[ $level == test ]]; then
		extras+=(dev)
		packages+=("${TEST_PACKAGES[@]}")
		[[ $(dpkg --print-architecture) != amd64 ]] || packages+=("${VM_PACKAGES[@]}")
	fi
	find_python
	local python_extra
	python_extra=$(python_packages)
	# shellcheck disable=SC2206
	packages+=($python_extra)
	install_packages "${packages[@]}"
	if [[ $level == test ]]; then
		install_packages "libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev"
	fi

	# A checkout that was moved or a Python that is gone: the venv's paths no longer hold.
	if [[ -d $VENV ]] && ! { "$VENV/bin/python" -c '' && head -n 1 "$VENV/bin/pip" | grep -qF "$VENV/"; } 2>/dev/null; then
		say "making .venv anew: it was made elsewhere or for another Python"
		rm -rf "$VENV"
	fi
	if [[ ! -d $VENV ]]; then
		say "making .venv"
		"$PYTHON" -m venv "$VENV" || { rm -rf "$VENV"; die "could not make $VENV"; }
	fi

	wanted=$(stamp_of pyproject.toml)
	if [[ $(cat "$STAMPS/$level" 2>/dev/null) != "$wanted" ]]; then
		say "installing Python packages"
		local list
		mapfile -t list < <(requirements "${extras[@]}")
		quietly "$VENV/bin/pip" install -q "${list[@]}"
		mkdir -p "$STAMPS"
		printf '%s\n' "$wanted" >"$STAMPS/$level"
	fi

	! is_editable || return 0
	wanted=$(stamp_of pyproject.toml meson.build LICENSE README.md csrc uvs docs/reference/man completions)
	if [[ $(cat "$STAMPS/built" 2>/dev/null) != "$wanted" ]]; then
		say "building uvs"
		rm -f "$STAMPS/built"
		PATH=$VENV/bin:$PATH quietly "$VENV/bin/pip" install -q --no-build-isolation --no-deps \
			--force-reinstall --config-settings=build-dir="$BUILD" .
		printf '%s\n' "$wanted" >"$STAMPS/built"
	fi
}
