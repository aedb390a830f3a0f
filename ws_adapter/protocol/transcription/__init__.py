"""The transcription protocol: utterances from a buffer that clients fill and commit."""
