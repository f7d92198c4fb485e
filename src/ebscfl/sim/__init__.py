"""Simulation: plays methods x attacks on this machine and writes what happened. Read `runner` first."""
