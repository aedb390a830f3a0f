"""From tokens to text that may be shown."""
