"""Chat and transcribe, blocking: `python blocking.py ws://127.0.0.1:8006 "Who are you?" question.wav`."""

import sys

import antiphon


def ask(url: str, question: str, recording: str) -> None:
    with antiphon.sync.connect(url) as client:
        with client.chat(question) as turn:
            print(turn.answer().text)
        with client.transcribe() as session, session.stream_file(recording):
            for event in session:
                match event:
                    case antiphon.TextDelta(text=text):
                        print(text, end="", flush=True)
                    case antiphon.Transcript():
                        print()
                        break


ask(*sys.argv[1:])
