"""Crowds of Moshi: simulated on an assumed card, and the tiny model measured on this machine."""
