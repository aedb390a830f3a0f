"""JSON Schema, AsyncAPI and tables of the public protocols, generated from the event structs.

`make schemas` writes them to `docs/protocol`, where they are checked in.
"""
