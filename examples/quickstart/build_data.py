"""Build train.jsonl and validation.jsonl from the fact tables in facts/.

Every kind of question has several phrasings for training and one that only validation uses, so
validation measures whether the model understood the question, not whether it saw the sentence.
Running this again writes the same files, byte for byte.
"""

import csv
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
SEED = 7

# A third of the questions get an opening, so that words before the question stop mattering.
OPENINGS = (
    "Please tell me: ",
    "Quick question: ",
    "Hello! ",
    "Hi, ",
    "Can you help me? ",
    "I would like to know: ",
    "One more thing: ",
    "Another question: ",
    "Could I ask you something? ",
    "Here is a question for you: ",
    "I forgot this: ",
    "For my homework, ",
    "Thank you. ",
    "Say, ",
)
OPENING_SHARE = 0.35
# Some people type without a capital letter or a question mark.
CASUAL_SHARE = 0.25
SYSTEM_MESSAGES = (
    "You are a helpful assistant.",
    "Answer in one short sentence.",
    "You answer questions about facts.",
)
SYSTEM_SHARE = 0.1
# How many questions one conversation holds: half hold one, the others go on for up to four.
CONVERSATION_LENGTHS = (1, 1, 1, 2, 3, 4)


class Kind(NamedTuple):
    """One kind of question about one table; the texts name the table's columns."""

    table: str
    reply: str
    answer: str
    held_out: str
    questions: tuple[str, ...]
    # Small tables are seen more often, or the large ones would drown them.
    repeats: int = 1


KINDS: dict[str, Kind] = {
    "capital": Kind(
        table="capitals",
        reply="The capital of {country} is {capital}.",
        answer="{capital}",
        held_out="Could you tell me which city is the capital of {country}?",
        questions=(
            "What is the capital of {country}?",
            "What's the capital city of {country}?",
            "Which city is the capital of {country}?",
            "Name the capital of {country}.",
            "Tell me the capital of {country}.",
            "Do you know the capital of {country}?",
            "What is {country_s} capital?",
            "Can you name the capital city of {country}?",
            "{country_s} capital is which city?",
            "Capital of {country}?",
            "I wonder what the capital of {country} is.",
        ),
    ),
    "country": Kind(
        table="capitals",
        reply="The country with the capital {capital} is {country}.",
        answer="{country}",
        held_out="Do you know which country {capital} is the capital of?",
        questions=(
            "Which country has {capital} as its capital?",
            "{capital} is the capital of which country?",
            "What country is {capital} the capital of?",
            "Name the country whose capital is {capital}.",
            "Tell me which country has the capital {capital}.",
            "Do you know which country has the capital {capital}?",
            "Whose capital is {capital}?",
            "The city of {capital} is the capital of what country?",
            "{capital} is the capital of?",
            "I wonder which country has {capital} as its capital.",
        ),
    ),
    "symbol": Kind(
        table="elements",
        reply="The chemical symbol of {name} is {symbol}.",
        answer="{symbol}",
        held_out="Could you tell me which chemical symbol {name} has?",
        questions=(
            "What is the chemical symbol of {name}?",
            "What's the chemical symbol for {name}?",
            "What is the symbol for the element {name}?",
            "Which symbol does {name} have in the periodic table?",
            "Tell me the symbol of the element {name}.",
            "Do you know the chemical symbol for {name}?",
            "How is {name} written as a chemical symbol?",
            "{name_s} chemical symbol is what?",
            "What is {name_s} chemical symbol?",
            "Chemical symbol of {name}?",
            "What is the symbol of {name}?",
            "Which symbol stands for {name}?",
            "I wonder which symbol {name} has.",
        ),
    ),
    "element of symbol": Kind(
        table="elements",
        reply="The element with the symbol {symbol} is {name}.",
        answer="{name}",
        held_out="Do you know what element the symbol {symbol} stands for?",
        questions=(
            "Which element has the symbol {symbol}?",
            "What element has the chemical symbol {symbol}?",
            "Which chemical element does {symbol} stand for?",
            "Name the element with the symbol {symbol}.",
            "Tell me which element is written as {symbol}.",
            "{symbol} is the chemical symbol of which element?",
            "What does {symbol} stand for in the periodic table?",
            "Do you know which element has the symbol {symbol}?",
            "Element with the symbol {symbol}?",
        ),
    ),
    "atomic number": Kind(
        table="elements",
        reply="The atomic number of {name} is {number}.",
        answer="{number}",
        held_out="Could you tell me which atomic number {name} has?",
        questions=(
            "What is the atomic number of {name}?",
            "What's the atomic number of the element {name}?",
            "{name_s} atomic number is what?",
            "Which atomic number does {name} have?",
            "Tell me the atomic number of {name}.",
            "Do you know the atomic number of {name}?",
            "How many protons does an atom of {name} have?",
            "What is {name_s} atomic number?",
            "Atomic number of {name}?",
            "I wonder which atomic number {name} has.",
        ),
    ),
    "element of number": Kind(
        table="elements",
        reply="The element with atomic number {number} is {name}.",
        answer="{name}",
        held_out="Do you know what element has the number {number} in the periodic table?",
        questions=(
            "Which element has atomic number {number}?",
            "What element has the atomic number {number}?",
            "Which element is number {number} in the periodic table?",
            "Name the element with atomic number {number}.",
            "Tell me which element has {number} protons.",
            "{number} is the atomic number of which element?",
            "Do you know which element has the atomic number {number}?",
            "What is element number {number}?",
            "Element with atomic number {number}?",
        ),
    ),
    "unit": Kind(
        table="units",
        reply="The SI unit of {quantity} is the {unit}.",
        answer="{unit}",
        held_out="Could you tell me which SI unit {quantity} has?",
        questions=(
            "What is the SI unit of {quantity}?",
            "What's the unit for {quantity}?",
            "Which SI unit is used for {quantity}?",
            "Name the SI unit of {quantity}.",
            "Tell me the unit of {quantity}.",
            "Do you know the SI unit for {quantity}?",
            "In which unit is {quantity} measured?",
            "Which unit does {quantity} have in the SI?",
            "SI unit of {quantity}?",
        ),
        repeats=2,
    ),
    "unit symbol": Kind(
        table="units",
        reply="The symbol of the unit {unit} is {symbol}.",
        answer="{symbol}",
        held_out="Could you tell me which symbol the unit {unit} has?",
        questions=(
            "What is the symbol of the unit {unit}?",
            "What's the symbol for the SI unit {unit}?",
            "Which symbol does the unit {unit} have?",
            "Name the symbol of the unit {unit}.",
            "Tell me the symbol for the unit {unit}.",
            "Do you know the symbol of the SI unit {unit}?",
            "How is the unit {unit} written as a symbol?",
            "Which symbol is used for the unit {unit}?",
            "Symbol of the unit {unit}?",
            "I wonder which symbol the unit {unit} has.",
        ),
        repeats=2,
    ),
    "plural": Kind(
        table="plurals",
        reply="The plural of {singular} is {plural}.",
        answer="{plural}",
        held_out="Could you tell me what the plural of the word {singular} is?",
        questions=(
            "What is the plural of {singular}?",
            "What's the plural form of {singular}?",
            "Which word is the plural of {singular}?",
            "Name the plural of {singular}.",
            "Tell me the plural of the word {singular}.",
            "Do you know the plural of {singular}?",
            "How do you write {singular} in the plural?",
            "What is the plural form of the word {singular}?",
            "Plural of {singular}?",
        ),
        repeats=2,
    ),
    "position": Kind(
        table="order",
        reply="Counting in order, {name} is the {position} {series}.",
        answer="{position}",
        held_out="Could you tell me which {series} {name} is?",
        questions=(
            "Which {series} is {name}?",
            "What {series} is {name}?",
            "Tell me which {series} {name} is.",
            "Do you know what {series} {name} is?",
            "Is {name} the first {series}, or which one is it?",
            "Which {series} is {name}: the first, the second, the third?",
            "I wonder which {series} {name} is.",
            "{name} is which {series}?",
        ),
        repeats=2,
    ),
    "name at position": Kind(
        table="order",
        reply="The {position} {series} is {name}.",
        answer="{name}",
        held_out="Could you tell me which one is the {position} {series}?",
        questions=(
            "What is the {position} {series}?",
            "Which one is the {position} {series}?",
            "Name the {position} {series}.",
            "Tell me the {position} {series}.",
            "Do you know the {position} {series}?",
            "What's the name of the {position} {series}?",
            "I wonder what the {position} {series} is.",
            "Can you name the {position} {series}?",
        ),
        repeats=2,
    ),
}


class Exchange(NamedTuple):
    """One question with its reply, and the part of the reply that must be right."""

    question: str
    reply: str
    answer: str

    def messages(self) -> list[dict[str, str]]:
        """Return the two turns of this exchange."""
        return [
            {"role": "user", "content": self.question},
            {"role": "assistant", "content": self.reply},
        ]


def read_table(name: str) -> list[dict[str, str]]:
    """Read one table; each column is also there as its possessive, under `<column>_s`."""
    with (HERE / "facts" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        for column, text in list(row.items()):
            row[f"{column}_s"] = text + ("'" if text.endswith("s") else "'s")
    return rows


def exchange(kind: Kind, question: str, fact: dict[str, str]) -> Exchange:
    """Fill one phrasing and the kind's reply with one fact."""
    # An answer that ends in a full stop itself ("Washington, D.C.") must not end in two.
    reply = kind.reply.format(**fact).replace("..", ".")
    # "the Netherlands" is right as "Netherlands" too.
    answer = kind.answer.format(**fact).removeprefix("the ")
    text = question.format(**fact)
    if question.startswith("{"):
        text = text[0].upper() + text[1:]
    return Exchange(text, reply, answer)


def casual(question: str) -> str:
    """Return a phrasing as people type it in haste, leaving names as they are."""
    return question[0].lower() + question[1:].rstrip("?.")


def opened(question: str, rng: random.Random) -> str:
    """Vary how a phrasing is written and what comes before it."""
    if rng.random() < CASUAL_SHARE:
        question = casual(question)
    if rng.random() < OPENING_SHARE:
        question = rng.choice(OPENINGS) + question
    return question


def training_rows(rng: random.Random) -> Iterable[dict[str, object]]:
    """Yield conversations that use every fact in every training phrasing."""
    exchanges = [
        exchange(kind, opened(question, rng), fact)
        for kind in KINDS.values()
        for fact in read_table(kind.table)
        for question in kind.questions * kind.repeats
    ]
    rng.shuffle(exchanges)
    while exchanges:
        messages: list[dict[str, str]] = []
        if rng.random() < SYSTEM_SHARE:
            messages.append({"role": "system", "content": rng.choice(SYSTEM_MESSAGES)})
        for _ in range(min(rng.choice(CONVERSATION_LENGTHS), len(exchanges))):
            messages += exchanges.pop().messages()
        yield {"messages": messages}


def validation_rows() -> Iterable[dict[str, object]]:
    """Yield one question per fact, each in the phrasing that training never uses."""
    for name, kind in KINDS.items():
        for fact in read_table(kind.table):
            turn = exchange(kind, kind.held_out, fact)
            yield {"messages": turn.messages(), "answer": turn.answer, "kind": name}


def write_rows(path: Path, rows: Iterable[dict[str, object]]) -> None:
    """Write the rows as JSON lines and say how many there were."""
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8", newline="\n")
    print(f"{path.name}: {len(lines)} rows")


if __name__ == "__main__":
    write_rows(HERE / "train.jsonl", training_rows(random.Random(SEED)))
    write_rows(HERE / "validation.jsonl", validation_rows())
