"""Data, partitions, models and local training: everything a client does before its update is protected."""
