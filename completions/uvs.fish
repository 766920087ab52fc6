# fish completion of uvs

function __uvs_in
    set -l words (commandline -opc)
    test "$words[2..3]" = "$argv" -o "$words[2]" = "$argv"
end

complete -c uvs -f
complete -c uvs -s h -l help -d 'what can be typed'
complete -c uvs -n __fish_use_subcommand -l version -d 'the version'
complete -c uvs -n __fish_use_subcommand -a run -d 'the director'
complete -c uvs -n __fish_use_subcommand -a lab -d 'an LVS in network namespaces'
complete -c uvs -n __fish_use_subcommand -a decap -d "the real server's end of a tunnel"
complete -c uvs -n __fish_use_subcommand -a sysctl -d "IPVS's knobs"
complete -c uvs -n __fish_use_subcommand -a doctor -d 'what this machine lacks'
complete -c uvs -n '__uvs_in run' -l driver -x -a netfilterqueue -d 'how packets come in'
complete -c uvs -n '__uvs_in run' -l queue-num -x -d 'NFQUEUE number'
complete -c uvs -n '__uvs_in run' -l conn-max -x -d 'connections at most'
complete -c uvs -n '__uvs_in run' -l socket -r -F -d 'control socket'
complete -c uvs -n '__uvs_in run' -l state-dir -r -F -d 'run state'
complete -c uvs -n '__uvs_in lab' -a 'demo up down status exec'
complete -c uvs -n '__uvs_in lab demo' -l mode -x -a 'nat dr tun' -d 'forwarding method'
complete -c uvs -n '__uvs_in lab demo' -l tun-type -x -a 'ipip gue gre' -d 'kind of tunnel'
complete -c uvs -n '__uvs_in lab demo' -s 4 -d 'IPv4 only'
complete -c uvs -n '__uvs_in lab demo' -s 6 -d 'IPv6 only'
complete -c uvs -n '__uvs_in lab up' -l mode -x -a 'nat dr tun' -d 'forwarding method'
complete -c uvs -n '__uvs_in lab up' -l tun-type -x -a 'ipip gue gre' -d 'kind of tunnel'
complete -c uvs -n '__uvs_in lab up' -l servers -x -d 'how many real servers'
complete -c uvs -n '__uvs_in lab up' -l empty -d 'no services yet'
complete -c uvs -n '__uvs_in lab up' -l no-offload -d 'offloads off'
complete -c uvs -n '__uvs_in lab up' -l name -x -d "the lab's name"
complete -c uvs -n '__uvs_in lab down' -l name -x -d 'which lab'
complete -c uvs -n '__uvs_in lab down' -l all -d 'every lab'
complete -c uvs -n '__uvs_in lab status' -l name -x -d 'which lab'
complete -c uvs -n '__uvs_in lab exec' -l name -x -d 'which lab'
complete -c uvs -n '__uvs_in lab exec' -a 'client director rs1 rs2 rs3 router'
complete -c uvs -n '__uvs_in decap' -l proto -x -a '4 41 47 4,41 4,41,47' -d 'tunnel protocols'
complete -c uvs -n '__uvs_in decap' -l gue-port -x -d 'UDP port of gue tunnels'
complete -c uvs -n '__uvs_in decap' -l dev -x -d 'TUN device'
complete -c uvs -n '__uvs_in decap' -l mtu -x -d 'its MTU'
complete -c uvs -n '__uvs_in sysctl' -s a -l all -d 'all knobs'
complete -c uvs -n '__uvs_in sysctl' -s n -l values -d 'values without names'
complete -c uvs -n '__uvs_in sysctl' -s N -l names -d 'names without values'
complete -c uvs -n '__uvs_in sysctl' -s q -l quiet -d 'do not show what is set'
complete -c uvs -n '__uvs_in sysctl' -s e -l ignore -d 'pass over unknown names'
complete -c uvs -n '__uvs_in sysctl' -s w -l write -d 'everything named is to be set'
complete -c uvs -n '__uvs_in sysctl' -s v -l verbose -d 'range and meaning too'
complete -c uvs -n '__uvs_in doctor' -l json -d 'as JSON'
