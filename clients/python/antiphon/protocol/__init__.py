"""The public protocols as data: messages to JSON, JSON to events."""
