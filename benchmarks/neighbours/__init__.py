"""What eight neighbours notice of an attack: `make neighbours`."""
