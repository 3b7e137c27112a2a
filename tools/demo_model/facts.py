"""Facts that a person can state about themselves, and questions for them.

A Fact is one slot ("what my dog is called") with several ways to tell it, several ways to ask for
it and ONE answer, in which {V} stands for the value.  One answer per slot keeps greedy decoding
unambiguous: any error in an answer is then a failure of memory and not of style.

Held-out combinations: a pair (slot, value) whose hash is 0 mod 8 never occurs in training text, and
evaluation dialogues use only such pairs."""
import hashlib
from dataclasses import dataclass

import words as w

HELD_OUT_MOD = 8


@dataclass(frozen=True)
class Fact:
    slot: str
    tells: tuple  # clauses, in lower case if a sentence may continue
    asks: tuple        # questions
    # a clause with {V}, without a full stop; the words that distinguish slots are at most 4 tokens
    # before {V}
    answer: str
    values: str  # name of a list of values
    unknown: str  # the assistant's name for a slot whose value the user has never given


def held_out(slot, value):
    digest = hashlib.sha256(f"{slot}|{value}".encode()).digest()
    return digest[0] % HELD_OUT_MOD == 0


def made_up_name(rng):
    n = rng.choice((2, 2, 3))
    return ("".join(rng.choice(w.SYLLABLES) for _ in range(n)) + rng.choice(w.ENDINGS)).capitalize()


def number(rng):
    return str(rng.randint(11, 999))


VALUES = {
    "person": w.PEOPLE, "pet": w.PET_NAMES, "city": w.CITIES, "job": w.JOBS, "colour": w.COLOURS,
    "food": w.FOODS, "drink": w.DRINKS, "fruit": w.FRUITS, "flower": w.FLOWERS, "sport": w.SPORTS,
    "instrument": w.INSTRUMENTS, "language": w.LANGUAGES, "animal": w.ANIMALS, "month": w.MONTHS,
    "day": w.DAYS, "place": w.PLACES, "errand": w.ERRANDS,
    "age": [str(n) for n in range(20, 90)], "small": [str(n) for n in range(2, 20)],
    "number": number,
}


def draw(values, rng):
    """Returns a value. One name in four is made up, so that the model has to copy and cannot
    memorise all names."""
    if values == "number":
        return number(rng)
    if values in ("person", "pet") and rng.random() < 0.25:
        return made_up_name(rng)
    return rng.choice(VALUES[values])


def draw_value(fact, rng, split):
    """Draws a value for the slot from the split 'train', 'heldout' or 'any'. Short lists (months,
    for example) have a held-out value for most slots. A slot without one falls back to 'any' after
    200 draws."""
    for _ in range(200):
        value = draw(fact.values, rng)
        if split == "any" or held_out(fact.slot, value) == (split == "heldout"):
            return value
    return value


def build_facts():
    facts = []

    def add(slot, tells, asks, answer, values, unknown):
        facts.append(Fact(slot, tuple(tells), tuple(asks), answer, values, unknown))

    for p in w.PETS:
        add(f"{p}.name", [f"my {p} is called {{V}}", f"I have a {p} called {{V}}",
                          f"the name of my {p} is {{V}}", f"I named my {p} {{V}}"],
            [f"What is my {p} called?", f"What is the name of my {p}?", f"What did I name my {p}?",
             f"Do you remember what my {p} is called?", f"Can you tell me the name of my {p}?"],
            f"your {p} is called {{V}}", "pet", f"what your {p} is called")
        add(f"{p}.age", [f"my {p} is {{V}} years old", f"the age of my {p} is {{V}} years"],
            [f"How old is my {p}?", f"What is the age of my {p}?"],
            f"your {p}'s age is {{V}}", "small", f"how old your {p} is")
        add(f"{p}.food", [f"my {p} likes to eat {{V}}", f"my {p} loves {{V}}"],
            [f"What does my {p} like to eat?", f"What does my {p} love?"],
            f"your {p} likes to eat {{V}}", "food", f"what your {p} likes to eat")
    for r in w.RELATIVES:
        add(f"{r}.name", [f"my {r} is called {{V}}", f"the name of my {r} is {{V}}",
                          f"I have a {r} called {{V}}", f"my {r} has the name {{V}}"],
            [f"What is my {r} called?", f"What is the name of my {r}?",
             f"Do you remember what my {r} is called?"],
            f"your {r} is called {{V}}", "person", f"what your {r} is called")
        add(f"{r}.city", [f"my {r} lives in {{V}}", f"the home of my {r} is in {{V}}"],
            [f"Where does my {r} live?", f"In which city does my {r} live?",
             f"Do you remember where my {r} lives?"],
            f"your {r} lives in {{V}}", "city", f"where your {r} lives")
        add(f"{r}.job", [f"my {r} works as {{V}}", f"the job of my {r} is to be {{V}}"],
            [f"What does my {r} do for a living?", f"What is the job of my {r}?"],
            f"your {r} works as {{V}}", "job", f"what your {r} does for a living")
        add(f"{r}.age", [f"my {r} is {{V}} years old", f"the age of my {r} is {{V}} years"],
            [f"How old is my {r}?", f"What is the age of my {r}?"],
            f"your {r}'s age is {{V}}", "age", f"how old your {r} is")
    add("me.name", ["my name is {V}", "I am called {V}", "my friends call me {V}"],
        ["What is my name?", "Do you remember my name?", "What am I called?"],
        "your name is {V}", "person", "your name")
    add("me.city", ["I live in {V}", "my home is in {V}", "my flat is in {V}"],
        ["Where do I live?", "In which city do I live?", "Do you remember where I live?"],
        "you live in {V}", "city", "where you live")
    add("me.born", ["I was born in {V}", "I grew up in {V}"],
        ["Where was I born?", "In which city was I born?"],
        "you were born in {V}", "city", "where you were born")
    add("me.job", ["I work as {V}", "my job is to be {V}"],
        ["What do I do for a living?", "What is my job?"],
        "you work as {V}", "job", "what you do for a living")
    add("me.age", ["I am {V} years old", "my age is {V} years"],
        ["How old am I?", "What is my age?"],
        "your age is {V}", "age", "how old you are")
    add("me.plays", ["I play the {V}", "I have lessons for the {V}"],
        ["Which instrument do I play?", "What instrument do I play?"],
        "you play the {V}", "instrument", "which instrument you play")
    add("me.birthday", ["my birthday is in {V}", "I have my birthday in {V}"],
        ["When is my birthday?", "In which month is my birthday?"],
        "your birthday is in {V}", "month", "when your birthday is")
    add("me.learns", ["I am learning {V}", "I take a course in {V}"],
        ["Which language am I learning?", "What language am I learning?"],
        "you are learning {V}", "language", "which language you are learning")
    for kind in ("colour", "food", "drink", "fruit", "flower", "sport", "instrument", "animal", "city",
                 "month", "day", "language"):
        values = kind
        add(f"fav.{kind}", [f"my favourite {kind} is {{V}}", f"the {kind} I like best is {{V}}",
                            f"my most loved {kind} is {{V}}"],
            [f"What is my favourite {kind}?", f"Which {kind} do I like best?",
             f"Do you remember my favourite {kind}?"],
            f"your favourite {kind} is {{V}}", values, f"your favourite {kind}")
    for t in w.COLOURED:
        add(f"{t}.colour", [f"my {t} is {{V}}", f"the colour of my {t} is {{V}}", f"I painted my {t} {{V}}"],
            [f"What colour is my {t}?", f"What is the colour of my {t}?"],
            f"your {t} is {{V}}", "colour", f"what colour your {t} is")
    for n in w.NUMBERED:
        add(f"{n}.number", [f"my {n} number is {{V}}", f"the number of my {n} is {{V}}"],
            [f"What is my {n} number?", f"What is the number of my {n}?",
             f"Do you remember my {n} number?"],
            f"your {n} number is {{V}}", "number", f"your {n} number")
    for things, be in ((w.LOST_ONE, "is"), (w.LOST_MANY, "are")):
        for o in things:
            add(f"{o}.place", [f"my {o} {be} {{V}}", f"I left my {o} {{V}}", f"I put my {o} {{V}}"],
                [f"Where {be} my {o}?", f"Where did I leave my {o}?",
                 f"Do you remember where my {o} {be}?"],
                f"your {o} {be} {{V}}", "place", f"where your {o} {be}")
    for d in w.DAYS:
        add(f"{d}.plan", [f"on {d} I will {{V}}", f"my plan for {d} is to {{V}}",
                          f"on {d} I want to {{V}}"],
            [f"What will I do on {d}?", f"What is my plan for {d}?"],
            f"on {d} you will {{V}}", "errand", f"what you will do on {d}")
    for m in w.MONTHS:
        add(f"{m}.trip", [f"in {m} I travel to {{V}}", f"in {m} I am going to {{V}}"],
            [f"Where do I travel in {m}?", f"Where am I going in {m}?"],
            f"in {m} you travel to {{V}}", "city", f"where you travel in {m}")
    return facts


FACTS = build_facts()

# A person's own name or favourite drink matters more in a chat than one of 200 slots.
WEIGHT = {"me": 4.0, "fav": 3.0}

CODE_WORDS = sorted({x for v in ("person", "pet", "city", "colour", "fruit", "flower", "sport", "instrument",
                                 "language", "animal", "month") for x in VALUES[v]})
VALUES["code"] = CODE_WORDS


def code_fact(rng):
    """Returns the fact that one code word stands for another. Any word may stand for any other.
    Hundreds of thousands of short-lived slots need one general way of looking things up, instead of
    one for each common relation."""
    k = rng.choice(CODE_WORDS)
    return Fact(f"{k}.code", (f"the code word for {k} is {{V}}", f"{k} stands for {{V}}"),
                (f"What is the code word for {k}?", f"What does {k} stand for?"),
                f"the code word for {k} is {{V}}", "code", f"the code word for {k}")


def draw_facts(rng, n, code_share):
    """Returns n different slots, drawn by weight (Efraimidis and Spirakis). A share of them are
    code words."""
    codes = {f.slot: f for f in (code_fact(rng) for _ in range(sum(rng.random() < code_share for _ in range(n))))}
    key = {f.slot: rng.random() ** (1 / WEIGHT.get(f.slot.split(".")[0], 1.0)) for f in FACTS}
    plain = sorted(FACTS, key=lambda f: -key[f.slot])[:n - len(codes)]
    picked = plain + list(codes.values())
    rng.shuffle(picked)
    return picked


def chance(fact):
    """Returns the accuracy of the best guess by somebody who knows the slot's list of values, but
    not the dialogue."""
    if fact.values == "number":
        return 1 / 989
    return 1 / len(VALUES[fact.values])
