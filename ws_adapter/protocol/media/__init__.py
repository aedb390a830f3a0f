"""Pictures, recordings and voices as clients send them, checked without decoding their pixels."""
