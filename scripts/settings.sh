#!/bin/sh
# Settings of a host, a line each: made in order, remembered, put back in reverse. For scripts/director and
# scripts/realserver, which read it from their own folder. POSIX sh and iproute2.
#
#   sysctl KEY VALUE          a file below /proc/sys
#   keep KEY                  what comes next may change it: put it back
#   module NAME DEVICE        the kernel's module that makes this device
#   up DEVICE                 a device that is set up
#   address A/LEN DEVICE      an address
#   route -4|-6 NET GATEWAY   a route
#   unit NAME                 a unit of systemd that runs
#   program NAME WORD...      a program that runs and has said that it is ready
#   table FILE                services and servers, in ipvsadm-restore's grammar
#
# $STATE is a folder: `arguments` (of start), `wanted` (such lines) and `undo`, what leads back, the last change
# last. A line is written to `undo` before its change is made: whatever ends us, stop finds the way back. What
# was there already is not undone; nor what somebody else has changed since.
# shellcheck disable=SC2086 # words of a line are split on purpose; none has a blank or a star

NAME=${0##*/}
READY_S=60 # for a program to be ready, or to end

set -f
umask 022

die() {
	printf '%s: %s\n' "$NAME" "$*" >&2
	exit 1
}

wrong_use() {
	printf '%s: %s: see %s --help\n' "$NAME" "$*" "$NAME" >&2
	exit 2
}

# The program of iproute2: a busybox shell prefers an `ip` of its own, which knows less.
ip() { "$IP" "$@"; }
IP=$(
	IFS=:
	for folder in $PATH /usr/sbin /sbin /bin; do
		if [ -x "$folder/ip" ]; then echo "$folder/ip" && break; fi
	done
)
case $("${IP:-false}" -V 2>&1) in
*iproute2*) ;;
*) die "iproute2 is needed: apt-get install iproute2" ;;
esac

family() { case $1 in *:*) echo -6 ;; *) echo -4 ;; esac; }

# host_prefix ADDRESS: with the length of a single address.
host_prefix() { case $1 in *:*) echo "$1/128" ;; *) echo "$1/32" ;; esac; }

need_address() { # WORD OPTION
	case $1 in
	*:*) case $1 in *[!0-9a-fA-F:.]*) false ;; esac ;;
	*.*.*.*) case $1 in *[!0-9.]*) false ;; esac ;;
	*) false ;;
	esac || wrong_use "$2 takes an address, not '$1'"
}

# whole_path FILE OPTION: so that `status` finds it from wherever it is asked.
whole_path() {
	case $1 in *[[:space:]]*) wrong_use "$2 takes a path without blanks, not '$1'" ;; esac
	case $1 in /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac
}

# has_device NAME. Not asked of `ip`: the kernel would load a module for the name (dev_load).
has_device() { grep -q "^ *$1:" /proc/net/dev; }

need_device() { has_device "$1" || die "no device $1: \`ip link\` lists those there are"; }

# sysctls PATTERN: keys below /proc/sys that there are.
sysctls() (
	set +f
	cd /proc/sys || exit
	for key in $1; do [ ! -e "$key" ] || echo "$key"; done
)

value() { cat "/proc/sys/$1" 2>/dev/null; }

routes() { ip "$1" route show exact "$2" 2>/dev/null | sed 's/ \(linkdown\|dead\|expires [0-9a-z]*\)//g; s/ *$//'; }

# ------------------------------------------------------------------------------------------------ programs

# begun PID: when the process began; nothing if there is none (a number is used again, the moment is not).
begun() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 1,20 | grep -v '^[ZX]' | cut -d ' ' -f 2; }

alive() ( # NAME
	read -r pid moment 2>/dev/null <"$STATE/$1.pid" && [ -n "$moment" ] && [ "$(begun "$pid")" = "$moment" ]
)

run_program() { # NAME WORD...
	log=$STATE/$1.log program=$1
	shift
	setsid "$@" </dev/null >"$log" 2>&1 &
	echo "$! $(begun $!)" >"$STATE/$program.pid"
	waited=0
	until grep -q 'ready[:,]' "$log"; do
		alive "$program" || { problem="$*: $(tail -n 1 "$log")"; return 1; }
		[ $waited -lt $((READY_S * 10)) ] || { problem="$* is not ready after $READY_S s"; return 1; }
		sleep 0.1
		waited=$((waited + 1))
	done
}

end_program() { # NAME
	alive "$1" || return 0
	read -r pid _ <"$STATE/$1.pid"
	kill "$pid" 2>/dev/null
	waited=0
	while alive "$1"; do
		[ $waited -lt $((READY_S * 10)) ] || kill -9 "$pid" 2>/dev/null
		sleep 0.1
		waited=$((waited + 1))
	done
}

services() { grep -c '^-A'; }

# ------------------------------------------------------------------------------------------- one setting

holds() { # LINE: is it so now?
	set -- $1
	case $1 in
	sysctl) [ "$(value "$2")" = "$3" ] ;;
	keep) : ;;
	module) has_device "$3" ;;
	up) has_device "$2" && ip -o link show dev "$2" up | grep -q . ;;
	address) ip -o address show dev "$3" to "$2" 2>/dev/null | grep -q . ;;
	route) routes "$2" "$3" | grep -q " via $4\( \|\$\)" ;;
	unit) systemctl -q is-active "$2" ;;
	program) alive "$2" ;;
	table) [ "$(uvsadm-save -n 2>/dev/null | services)" -ge "$(services <"$2")" ] ;;
	esac
}

told() { # LINE: for people
	set -- $1
	case $1 in
	sysctl) echo "$2 = $3" ;;
	module) echo "device $3 (module $2)" ;;
	up) echo "device $2 is up" ;;
	address) echo "$2 on $3" ;;
	route) echo "$3 by way of $4" ;;
	unit) echo "$2 runs" ;;
	program) shift 2; echo "$* runs" ;;
	table) echo "the services of $2" ;;
	esac
}

remember() { printf '%s\n' "$*" >>"$STATE/undo" || die "cannot write $STATE/undo"; }

make() { # LINE: make it so; 1, and $problem says why, if that fails
	[ "${1%% *}" != keep ] && holds "$1" && return 0
	line=$1 problem=
	set -- $1
	case $1 in
	sysctl)
		[ -e "/proc/sys/$2" ] || { problem="no $2 in this kernel"; return 1; }
		remember sysctl "$2" "$3" "$(value "$2")"
		echo "$3" >"/proc/sys/$2"
		;;
	keep) grep -qs "^keep $2 " "$STATE/undo" || remember keep "$2" "$(value "$2")" ;;
	module)
		remember module "$2"
		modprobe -q "$2"
		;;
	up)
		remember up "$2"
		ip link set "$2" up
		;;
	address)
		remember address "$2" "$3"
		# Deprecated, so that this host does not use it for connections of its own; no wait for duplicates.
		case $2 in *:*) ip address add "$2" dev "$3" nodad preferred_lft 0 ;; *) ip address add "$2" dev "$3" ;; esac
		;;
	route)
		routes "$2" "$3" | while read -r old; do remember was "$2" "$old"; done
		remember route "$2" "$3" "$4"
		ip "$2" route replace "$3" via "$4"
		;;
	unit)
		remember unit "$2"
		systemctl start "$2"
		;;
	program)
		remember program "$2"
		shift
		run_program "$@"
		return
		;;
	table)
		uvsadm-save -n >"$STATE/table.before" || { problem="the director does not answer"; return 1; }
		remember table
		uvsadm -C && uvsadm-restore <"$2"
		;;
	esac 2>"$STATE/said" && holds "$line" && return
	problem="$(told "$line"): $(tail -n 1 "$STATE/said")"
	return 1
}

undo() { # LINE of $STATE/undo
	set -- $1
	case $1 in
	sysctl) [ "$(value "$2")" != "$3" ] || { key=$2; shift 3; echo "$*" >"/proc/sys/$key"; } ;;
	keep) key=$2; shift 2; [ ! -e "/proc/sys/$key" ] || [ "$(value "$key")" = "$*" ] || echo "$*" >"/proc/sys/$key" ;;
	module) modprobe -q -r "$2" || : ;; # somebody else may use it
	up) ip link set "$2" down ;;
	address) ip address delete "$2" dev "$3" ;;
	route) ip "$2" route delete "$3" via "$4" ;;
	was)
		of=$2
		shift 2
		routes "$of" "$1" | grep -qxF "$*" || ip "$of" route add "$@"
		;;
	unit) systemctl stop "$2" ;;
	program) end_program "$2" ;;
	table) uvsadm -C && uvsadm-restore <"$STATE/table.before" ;;
	esac 2>/dev/null || : # it is gone already
}

# ------------------------------------------------------------------------------------------ all of them

settings_undo() {
	[ -d "$STATE" ] || return 0
	if [ -e "$STATE/undo" ]; then
		sed '1!G;h;$!d' "$STATE/undo" >"$STATE/back" # the last change first
		while read -r record <&3; do undo "$record"; done 3<"$STATE/back"
	fi
	# By name: the folder may be one that somebody else uses too.
	for file in arguments wanted wanted.new back said table.before decap.pid decap.log run.pid run.log undo; do
		rm -f "$STATE/$file"
	done
	rmdir "$STATE" 2>/dev/null || :
}

# settings_start ARGUMENTS: make what `wanted` lists, or what of it does not hold any more. If that fails all is undone.
settings_start() {
	if [ ! -e "$STATE/wanted" ] || [ "$(cat "$STATE/arguments")" != "$*" ]; then settings_undo; fi
	mkdir -p "$STATE" || die "cannot make $STATE"
	trap 'trap "" INT TERM HUP; settings_undo; exit 1' INT TERM HUP
	if [ ! -e "$STATE/wanted" ]; then
		printf '%s\n' "$*" >"$STATE/arguments"
		wanted >"$STATE/wanted.new"
		mv "$STATE/wanted.new" "$STATE/wanted"
	fi
	while read -r setting <&3; do
		make "$setting" || {
			trap '' INT TERM HUP
			why=$problem
			settings_undo
			die "$why: all is undone"
		}
	done 3<"$STATE/wanted"
	trap - INT TERM HUP
}

settings_hold() {
	while read -r setting <&3; do holds "$setting" || return 1; done 3<"$STATE/wanted"
}

# settings_status: what is and what is not. 0 all, 1 a part, 3 never started or stopped.
settings_status() {
	if [ ! -e "$STATE/wanted" ]; then
		echo "$NAME: stopped"
		return 3
	fi
	if settings_hold; then echo "$NAME: running: $(cat "$STATE/arguments")"; else
		echo "$NAME: half: $(cat "$STATE/arguments")"
	fi
	while read -r setting <&3; do
		case $setting in keep\ *) continue ;; esac
		if holds "$setting"; then echo "  yes  $(told "$setting")"; else echo "  NO   $(told "$setting")"; fi
	done 3<"$STATE/wanted"
	settings_hold
}

settings_stop() {
	trap '' INT TERM HUP
	settings_undo
}
