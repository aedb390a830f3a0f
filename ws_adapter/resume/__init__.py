"""Sessions that outlive their connection: a client that lost it opens another one and goes on."""
