"""The transcription protocol: utterances from a buffer that clients fill and commit, and items beside a conversation."""
