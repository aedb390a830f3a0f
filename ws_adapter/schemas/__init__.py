"""The public protocols for other programs: JSON Schema, AsyncAPI and tables, made from the event structs.

`make schemas` writes them to `docs/protocol`, where they are checked in.
"""
