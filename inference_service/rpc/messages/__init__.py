"""Messages of the gRPC contract: requests are read and checked, replies are made."""
