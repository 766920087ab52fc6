"""What `uvsadm -h` prints."""

HELP = """\
usage: uvsadm COMMAND [OPTIONS]         sets virtual services of a running director (uvs run)

A virtual service is an address that clients connect to; its real servers answer them:

  uvsadm -A -t 192.0.2.1:80 -s rr                     a TCP service, servers in turn (round robin)
  uvsadm -a -t 192.0.2.1:80 -r 10.0.0.11:8080 -m      a real server, by NAT
  uvsadm -a -t 192.0.2.1:80 -r 10.0.0.12:8080 -m -w 2
  uvsadm -Ln                                          what there is, in numbers
  uvsadm -Lnc                                         the connections
  uvsadm -d -t 192.0.2.1:80 -r 10.0.0.11:8080         take a server out
  uvsadm -D -t 192.0.2.1:80                           remove the service

Commands (the first option):
  -A, --add-service SERVICE [-s SCHEDULER] [-p [SECONDS]] [-M MASK] [--pe NAME] [-b FLAGS] [-o]
  -E, --edit-service SERVICE ...        the same; what is left out goes back to its default
  -D, --delete-service SERVICE
  -a, --add-server SERVICE -r SERVER [-g|-i|-m] [-w WEIGHT] [-x MAX] [-y MIN] [TUNNEL]
  -e, --edit-server SERVICE -r SERVER ...
  -d, --delete-server SERVICE -r SERVER
  -L, -l, --list [SERVICE] [-n] [-c | --timeout | --daemon | --stats | --rate | --thresholds
          | --persistent-conn | --tun-info] [--exact] [--nosort] [--json]
  -C, --clear                           delete all services
  -Z, --zero [SERVICE]                  counters to zero
  --set TCP TCPFIN UDP                  idle time-outs of connections, seconds; 0 keeps one
  -S, --save [-n]                       print the table as commands
  -R, --restore [--atomic]              run commands from standard input; all or none
  --start-daemon, --stop-daemon master|backup [--mcast-interface IF] [--syncid N] ...
  -h, --help    -v, --version

SERVICE, one of:
  -t, --tcp-service HOST[:PORT]         also -u, --udp-service and --sctp-service; IPv6: [ADDRESS]:PORT
  -f, --fwmark-service MARK [-6]        packets with this firewall mark

Options:
  -s, --scheduler NAME                  rr wrr lc wlc sed nq lblc lblcr dh sh mh fo ovf twos (default wlc)
  -p, --persistent [SECONDS]            a client stays with its server (default 360 s)
  -M, --netmask MASK                    what counts as one client: 255.255.255.0; IPv6: prefix length
  -r, --real-server HOST[:PORT]         the server; its port is the service's unless given
  -g, --gatewaying                      direct routing (default): the server has the service's address too
  -i, --ipip                            tunnelling; --tun-type ipip|gue|gre, --tun-port, --tun-[no|rem]csum
  -m, --masquerading                    NAT: the server's replies must come back through the director
  -w, --weight N                        share of new connections; 0: no new ones
  -x, --u-threshold N                   no new connections above N;  -y, --l-threshold N: until below N
  -o, --ops                             schedule every UDP datagram anew
  -b, --sched-flags LIST                sh-fallback,sh-port  mh-fallback,mh-port  flag-1,flag-2,flag-3
  -n, --numeric                         addresses and ports as numbers
  -X, --exact                           counters without K, M, G
Where the director listens: UVS_SOCKET, else /run/uvs/control.sock ($XDG_RUNTIME_DIR/uvs without root).
Exit status: 0 done, 1 listing failed, 2 wrong use or no director, 255 refused or unknown option.
"""
