"""An LVS in network namespaces: client, director and real servers on one machine, without root.

`topology` says what there is, `namespaces` makes it, `servers` and `fetch` run in it, `demo` tells the story.
"""
