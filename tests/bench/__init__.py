"""Figures of the whole director beside its peers: `scripts/bench` (python -m bench, with tests/ on PYTHONPATH).

    stand        a lab with what every peer needs, its client's programs, what its director has used
    peers        what forwards: plain routing, iptables, HAProxy, nginx, an NFQUEUE loop that accepts, uvs
    bulk packets web latency        kinds of work that all peers do
    connections amounts flood       kinds of work that tell how uvs bears size and floods
    plan         which works, with which peers, for how long
    results targets                 figures of all rounds; the project's limits and aims against them
    report plots page               told on a terminal, drawn, written into docs/performance
    accept.c sender.c latency.c     compiled when they are needed

Programs of their own, each for one part of the director: table, scale, control, egress.
"""
