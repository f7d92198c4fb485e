"""Fixtures of the learning tests."""

from learning_fixtures import dataset, need_data, no_local_data

__all__ = ["dataset", "need_data", "no_local_data"]
