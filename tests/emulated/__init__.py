"""Tests on processors that are not at hand, in Bochs, a PC in software."""
