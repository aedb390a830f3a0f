"""Mutation tests: do the tests of the core modules fail when the code is wrong? `make mutation`."""
