"""Builds one seeded dialogue: facts are told, small talk follows, and the facts are asked for.

A dialogue is a list of Turn.  The builder knows nothing of tokens; it estimates length in words,
and the caller cuts.  `style`:
  mixed  facts and questions throughout (dense supervision, all distances)
  late   facts first, then other talk, then questions (long distances)"""
from dataclasses import dataclass, field

import facts as F
import smalltalk as S
import words as w

SYSTEM_LINES = ["You are a friendly assistant with a good memory.", "You are a helpful assistant.",
                "Answer briefly.", "Be kind and remember what the user tells you."]
WRAPS = ["{}.", "{}.", "{}.", "By the way, {}.", "You should know that {}.", "Just so you know, {}.",
         "I want to tell you that {}.", "Let me tell you something: {}.", "Please remember that {}.",
         "Please note that {}.", "Remember this: {}.", "Keep in mind that {}."]
# Replies that repeat the fact. They put the fact's words into the context, near the many ways of
# telling the fact, and the model learns them from there.
ECHOES = ["Noted: {}.", "I see, {}.", "I will remember that {}.", "Good to know that {}."]


@dataclass
class Turn:
    role: str
    text: str
    value: str = None          # in an assistant turn: the value that it must contain
    slot: str = None
    told: list = field(default_factory=list)  # (slot, value) stated or repeated here


def sentence(text):
    return text[0].upper() + text[1:]


def clause_in(wrap, text):
    return wrap.format(sentence(text) if wrap.startswith("{") else text)


class Builder:
    def __init__(self, rng, words, style="mixed", split="train", n_facts=None,
                 code_share=0.25):
        self.rng, self.limit, self.style, self.split = rng, words, style, split
        self.turns, self.words = [], 0
        self.told = {}  # slot -> (fact, value, number of words when it was last mentioned)
        self.used_values = set()
        self.beasts = set()
        self.story_questions = []
        self.untold = F.draw_facts(rng, n_facts or max(3, words // 60), code_share)

    def say(self, role, text, **kw):
        self.turns.append(Turn(role, text, **kw))
        # 3 more words for punctuation and for the marks of the turn
        self.words += len(text.split()) + 3

    # -- one exchange each ------------------------------------------------------------------
    def tell(self):
        n = min(len(self.untold), self.rng.choice((1, 1, 1, 2, 2, 3)))
        clauses, echoes, told = [], [], []
        for _ in range(n):
            fact = self.untold.pop()
            value = F.draw_value(fact, self.rng, self.split)
            # no two facts share a value, so that answers can be checked
            if value in self.used_values:
                self.untold.insert(0, fact)
                continue
            self.used_values.add(value)
            clauses.append(self.rng.choice(fact.tells).replace("{V}", value))
            echoes.append(fact.answer.replace("{V}", value))
            told.append((fact.slot, value))
            self.told[fact.slot] = (fact, value, self.words)
        if not clauses:
            return
        self.say("user", clause_in(self.rng.choice(WRAPS), " and ".join(clauses)), told=told)
        self.say("assistant", self.rng.choice(ECHOES).format(" and ".join(echoes)), told=told)

    def ask(self, slot):
        fact, value, _ = self.told[slot]
        question = self.rng.choice(fact.asks)
        answer = sentence(fact.answer.replace("{V}", value)) + "."
        if question.startswith(("Do you", "Can you")):
            answer = f"Yes, {fact.answer.replace('{V}', value)}."
        self.say("user", question)
        self.say("assistant", answer, value=value, slot=slot)
        self.told[slot] = (fact, value, self.words)

    def ask_unknown(self):
        fact = self.rng.choice(F.FACTS)
        if fact.slot in self.told:
            return
        self.say("user", self.rng.choice(fact.asks))
        self.say("assistant", f"You have not told me {fact.unknown}.")

    def chat(self):
        user, reply = self.rng.choice(S.SMALL_TALK)
        self.say("user", user)
        self.say("assistant", reply)

    def essay(self):
        topic = self.rng.choice(list(S.ESSAYS))
        self.say("user", self.rng.choice(S.ESSAY_ASKS).format(topic))
        self.say("assistant", S.ESSAYS[topic])

    def diary(self):
        self.say("user", S.diary(self.rng, self.rng.randint(3, 9)))
        self.say("assistant", self.rng.choice(S.DIARY_REPLIES))

    def user_story(self):
        beast, friend, text, questions = S.story(self.rng)
        if self.new_beasts(beast, friend):
            self.say("user", "Here is a story. " + text)
            self.say("assistant", self.rng.choice(["Thank you, that was a nice story.", "What a lovely story!"]))
            self.story_questions = questions

    def own_story(self):
        beast = self.rng.choice(w.BEASTS)
        friend, text, questions = S.OWN_STORIES[beast]
        if self.new_beasts(beast, friend):
            self.say("user", self.rng.choice(["Tell me a story about {}.", "Do you know a story about {}?"])
                     .format(S.with_article(beast)))
            self.say("assistant", text)
            self.story_questions = list(questions)

    def new_beasts(self, *beasts):
        """Returns whether none of these animals is in an earlier story of this dialogue. Questions
        name only the animal, so no two stories may share one."""
        new = self.beasts.isdisjoint(beasts)
        self.beasts.update(beasts if new else ())
        return new

    def ask_story(self):
        question, answer, value = self.story_questions.pop(self.rng.randrange(len(self.story_questions)))
        self.say("user", question)
        self.say("assistant", sentence(answer.replace("{V}", value)) + ".", value=value, slot="story")

    def filler(self):
        kind = self.rng.random()
        if self.story_questions and kind < 0.4:
            self.ask_story()
        elif kind < 0.6:
            self.chat()
        else:
            self.rng.choice((self.essay, self.diary, self.diary, self.user_story, self.own_story))()

    # -- the whole ----------------------------------------------------------------------------
    def next_slot(self):
        """Returns, half of the time, the slot that was mentioned longest ago, otherwise any but the
        last one asked for."""
        if len(self.told) > 1 and self.rng.random() < 0.5:
            return min(self.told, key=lambda s: self.told[s][2])
        latest = max(self.told, key=lambda s: self.told[s][2])
        return self.rng.choice([s for s in self.told if s != latest] or [latest])

    def build(self):
        rng = self.rng
        if rng.random() < 0.15:
            self.say("system", rng.choice(SYSTEM_LINES))
        if rng.random() < 0.3:
            self.chat()
        if self.style == "mixed":
            filler = rng.choice((0, 0.03, 0.1, 0.3))
            while self.words < self.limit:
                u = rng.random()
                if u < filler:
                    self.filler()
                elif u < filler + 0.04:
                    self.ask_unknown()
                elif self.untold and (not self.told or rng.random() < 0.35):
                    self.tell()
                else:
                    self.ask(self.next_slot())
        else:
            while self.untold:
                self.tell()
                if rng.random() < 0.2:
                    self.chat()
            quiet = rng.uniform(0, 0.9) * self.limit
            while self.words < quiet:
                self.filler()
            slots = []
            while self.words < self.limit:
                slots = slots or rng.sample(list(self.told), len(self.told))
                if rng.random() < 0.08:
                    self.ask_unknown()
                else:
                    self.ask(slots.pop())
        return self.turns
