"""A real federation: the protocol's roles driven over a network, with durable rounds and faults on purpose.

`server_agent` and `client_agent` move bytes between a role and the key centre, `journal` makes a round survive its
server, `rounds` plays one round with deadlines and a quorum. `demo` starts everything as processes, `proxy` and
`faults` break it.
"""
