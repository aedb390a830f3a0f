"""Messages of the contract, read into requests and made of replies."""
