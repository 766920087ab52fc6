# bash completion of uvsadm                                             -*- shell-script -*-

_uvsadm()
{
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} words
	case $prev in
	-s | --scheduler) words='rr wrr lc wlc sed nq lblc lblcr dh sh mh fo ovf twos' ;;
	--start-daemon | --stop-daemon) words='master backup' ;;
	--tun-type) words='ipip gue gre' ;;
	*)
		if ((COMP_CWORD == 1)); then
			words='-A --add-service -E --edit-service -D --delete-service -C --clear -L -l --list -Z --zero
				-a --add-server -e --edit-server -d --delete-server -R --restore -S --save --set
				--start-daemon --stop-daemon -h --help -v --version'
		else
			words='-t --tcp-service -u --udp-service --sctp-service -f --fwmark-service -6 --ipv6
				-s --scheduler -p --persistent -M --netmask -r --real-server -m --masquerading -i --ipip
				-g --gatewaying -w --weight -x --u-threshold -y --l-threshold -n --numeric
				-c --connection --mcast-interface --syncid --timeout --daemon --stats --rate --thresholds
				--persistent-conn --nosort --sort -X --exact -o --ops --pe -b --sched-flags --mcast-group
				--mcast-port --mcast-ttl --sync-maxlen --tun-info --tun-type --tun-port --tun-nocsum
				--tun-csum --tun-remcsum --json --atomic'
		fi
		;;
	esac
	COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -F _uvsadm uvsadm
