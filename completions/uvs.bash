# bash completion of uvs                                                -*- shell-script -*-

_uvs()
{
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} words
	COMPREPLY=()
	case $prev in
	--driver) words='native netfilterqueue' ;;
	--mode) words='nat dr tun' ;;
	--log-format) words='text json' ;;
	--tun-type) words='ipip gue gre' ;;
	--proto) words='4 41 47 4,41 4,41,47' ;;
	--hook) words='LOCAL_IN FORWARD LOCAL_OUT' ;;
	--services | --pcap | --write | --textfile) COMPREPLY=($(compgen -f -- "$cur")); return ;;
	--socket) COMPREPLY=($(compgen -f -- "$cur")); return ;;
	--control-group) COMPREPLY=($(compgen -g -- "$cur")); return ;;
	--control-user) COMPREPLY=($(compgen -u -- "$cur")); return ;;
	--state-dir | --root | --prefix) COMPREPLY=($(compgen -d -- "$cur")); return ;;
	esac
	if [[ -n $words ]]; then
		COMPREPLY=($(compgen -W "$words" -- "$cur"))
		return
	fi
	local command=${COMP_WORDS[1]}
	((COMP_CWORD > 1)) || command=
	[[ $command != @(lab|director) ]] || ((COMP_CWORD == 2)) || command="$command ${COMP_WORDS[2]}"
	case $command in
	'') words='run director lab walk trace decap sysctl top web metrics monitor install-units flush reload diff drain exec doctor -h --help --version' ;;
	run) words='--driver --queue-num --queues --busy-poll --conn-max --socket --state-dir --restore-at-boot --control-group --control-user --config --check --log-format' ;;
	director) words='up down status announce' ;;
	'director up') words='--interface --vip --config --no-forward' ;;
	'director announce') words='--interface --vip' ;;
	'director down' | 'director status') ;;
	lab) words='demo up down status exec send stop start mode arp capture link' ;;
	'lab demo') words='--mode --tun-type -4 -6' ;;
	'lab up') words='--mode --tun-type --servers --empty --no-offload --name' ;;
	'lab down') words='--name --all' ;;
	'lab status') words='--name' ;;
	'lab exec') words='--name client director rs1 rs2 rs3 router' ;;
	'lab send') words='--name --wait --json client director rs1 rs2 rs3 router' ;;
	'lab stop') words='--name --cable director rs1 rs2 rs3' ;;
	'lab start') words='--name director rs1 rs2 rs3' ;;
	'lab mode') words='--name --tun-type nat dr tun' ;;
	'lab arp') words='--name --break --mend' ;;
	'lab capture') words='--name --count -c --write client director rs1 rs2 rs3 router' ;;
	'lab link') words='--name --loss --delay --clear client director rs1 rs2 rs3 router' ;;
	walk) words='--services --pcap --write --json --hook --mark --local --mtu --mac --no-route --no-neighbour --sysctl --interval' ;;
	trace) words='--json --pcap --summary --rate --count --seconds client service server host port proto mark hook verdict why
		tcp udp sctp icmp icmp6 ip ip6 and or not' ;;
	decap) words='--proto --gue-port --dev --mtu' ;;
	sysctl) words='-a --all -n --values -N --names -q --quiet -e --ignore -w --write -v --verbose' ;;
	top) words='--interval --once --json' ;;
	web) words='--listen --no-key' ;;
	monitor) words='status forget --config --socket --json --log-format' ;;
	metrics) words='--listen --textfile --log-format' ;;
	install-units) words='--root --prefix -n --dry-run --remove --force' ;;
	flush) words='-t --tcp-service -u --udp-service --sctp-service -f --fwmark-service -6 --ipv6 -r --server -c --client
		--client-port --all -n --dry-run --json' ;;
	reload | diff) words='--json' ;;
	drain) words='-t --tcp-service -u --udp-service --sctp-service -f --fwmark-service -6 --ipv6 -r --server --deadline
		--cancel --wait --json' ;;
	exec) words='--timeout --restart' ;;
	doctor) words='--json' ;;
	esac
	[[ -z $command ]] || words+=' -h --help'
	COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -F _uvs uvs
