"""A real federation: the protocol's roles driven over a network, with durable rounds and faults on purpose.

`server_agent` and `client_agent` move bytes between a role and the key centre, `journal` makes a round survive its
server, `rounds` plays one round with deadlines and a quorum. `site` is a federation's files on one machine; `demo`
starts everything on it as processes, `simulation` lets Flower play the clients, `proxy`, `faults` and `kills` break it.
"""
