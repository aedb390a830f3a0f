"""Untrusted bytes become arrays here, strictly and within bounds."""
