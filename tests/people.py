"""Somebody to be asked."""


class Person:
    """Gives the same answer each time, and remembers what was asked."""

    def __init__(self, answer=True):
        self.answer = answer
        self.asked = []

    def __call__(self, question):
        self.asked.append(question)
        return self.answer
