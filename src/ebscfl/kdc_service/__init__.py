"""The key centre as a service of its own: the role of `ebscfl.protocol` behind mutual TLS.

`certificates` names the parties, `frames` puts codec messages on a socket, `service` drives the role, `stub` is the
other end, `deployment` knows the files, `limits` and `metrics` guard and watch every endpoint.
"""
