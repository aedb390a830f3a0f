"""Transcription: utterances from a buffer that clients fill and commit, and items of conversations."""
