"""The federation on Flower 1.41: Flower carries the messages, the roles of `ebscfl.protocol` decide what is in them.

`server_app` and `client_app` are the components a Flower app names; `strategy` and `exchange` are the server's side,
`mods` the client's, `records` the form of the messages, `guard` runs only the apps a client's owner has allowed.
Nothing above this package imports flwr.
"""

ENVIRONMENT = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""What every Flower process is started with: it reports to nobody."""
