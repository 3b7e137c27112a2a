"""Small talk, short essays and stories, which stand between a fact and the question for it."""
import random

import words as w

SMALL_TALK = [
    ("Hello!", "Hello! It is good to hear from you."),
    ("Good morning.", "Good morning! I hope you slept well."),
    ("Good evening.", "Good evening! How was your day?"),
    ("How are you?", "I am fine, thank you. How are you?"),
    ("I am fine too.", "I am glad to hear that."),
    ("Thank you.", "You are welcome."),
    ("Thanks for your help.", "You are welcome. I am happy to help."),
    ("Who are you?", "I am a small model that remembers what you tell me."),
    ("What can you do?", "I can chat with you, tell short stories and remember what you told me."),
    ("Are you a person?", "No, I am a small language model."),
    ("Do you sleep?", "No, but my memory can rest on a disk for a while."),
    ("It is raining today.", "Then it is a good day to stay inside with a book."),
    ("The sun is shining.", "How nice! Perhaps you can go for a walk."),
    ("It is very cold outside.", "Put on a warm coat and have some tea."),
    ("I am tired.", "Then you should rest a little."),
    ("I am hungry.", "Maybe it is time for a good meal."),
    ("I am bored.", "Shall I tell you a story?"),
    ("I am happy today.", "That is wonderful to hear."),
    ("I had a long day.", "I am sorry to hear that. I hope you can rest now."),
    ("I could not sleep last night.", "I am sorry to hear that. A short walk may help."),
    ("What a lovely day!", "It is indeed. Enjoy it!"),
    ("Do you like music?", "I cannot hear it, but I like to talk about it."),
    ("Do you like stories?", "Yes, I like short stories very much."),
    ("Tell me a joke.", "Why did the book go to the doctor? It had lost its spine."),
    ("Can you keep a secret?", "Yes, I will keep it between us."),
    ("Let us talk about something else.", "Of course. What would you like to talk about?"),
    ("Wait a moment, please.", "Take your time, I will be here."),
    ("I am back.", "Welcome back! Where were we?"),
    ("See you later.", "See you later! I will remember our chat."),
    ("What do you think about winter?", "Winter is quiet and bright, and tea tastes best in winter."),
    ("What do you think about summer?", "Summer is warm and long, and the evenings are lovely."),
    ("Is tea better than coffee?", "Both are good. It depends on the time of day."),
    ("I need some advice.", "I will try to help. What is it about?"),
    ("How many days are in a week?", "There are seven days in a week."),
    ("How many months are in a year?", "There are twelve months in a year."),
    ("What comes after Monday?", "After Monday comes Tuesday."),
    ("What comes after Friday?", "After Friday comes Saturday."),
    ("What comes before June?", "Before June comes May."),
    ("What colour is the sky?", "On a clear day the sky is blue."),
    ("What colour is grass?", "Grass is green."),
]

ESSAYS = {
    "bees": "Bees live together in a hive. They fly from flower to flower and collect nectar, which they "
            "turn into honey. A dance tells the others where the best flowers are.",
    "the moon": "The moon travels around the earth in about four weeks. It has no light of its own and "
                "shines because the sun lights it. Its pull makes the sea rise and fall.",
    "rivers": "A river begins as a small spring in the hills. Many streams join it on its way, until it "
              "is wide and slow and reaches the sea.",
    "bread": "Bread is made of flour, water, salt and yeast. The dough must rest in a warm place until it "
             "has grown, and then it is baked in a hot oven.",
    "clocks": "The first clocks used shadows or dripping water. Later, clocks had heavy weights and a "
              "pendulum. Today a tiny crystal keeps the time.",
    "owls": "Owls hunt at night. Their soft feathers make no sound, and their ears can hear a mouse under "
            "the snow.",
    "trains": "The first trains were pulled by steam engines. They were loud and dirty, but they made the "
              "world smaller. Today most trains use electricity.",
    "volcanoes": "A volcano is a mountain with a path to the hot rock below. When the pressure is too high, "
                 "the rock breaks out as lava and ash.",
    "snow": "Snow is made of small ice crystals. Each of them has six arms, and hardly two of them are "
            "the same. A thick blanket of snow keeps the ground warm.",
    "lighthouses": "A lighthouse stands on the coast and warns ships of rocks. In old times a keeper lit "
                   "the lamp every evening. Today the lamps work alone.",
    "cheese": "Cheese is made from milk. The milk is warmed until it becomes thick, the water is pressed "
              "out, and then the cheese rests for weeks or months.",
    "libraries": "A library lends books to everybody. The oldest libraries kept tablets of clay and rolls "
                 "of paper. A good library is quiet and warm.",
    "spiders": "A spider has eight legs and spins a web of silk. It waits until the web trembles, and then "
               "it runs to catch its meal.",
    "tea": "Tea comes from the leaves of a bush that grows in warm hills. Green tea is dried quickly, and "
           "black tea is left to turn dark first.",
    "islands": "An island is land with water on every side. Some islands are the tops of old mountains, "
               "and others were built by tiny animals in the sea.",
    "paper": "Paper is made from wood. The wood is cut and boiled to a soft mash, spread over a fine net, "
             "pressed and dried.",
    "whales": "Whales are the largest animals of all. They live in the sea but breathe air, and they sing "
              "songs that travel for many miles.",
    "stars": "Stars are suns that are very far away. Their light needs years to reach us, so we see them "
             "as they were long ago.",
    "gardens": "A garden needs sun, water and patience. In spring one plants the seeds, in summer one "
               "pulls the weeds, and in autumn one gathers the fruit.",
    "ships": "Ships were first moved by oars and sails. Then came steam, and later oil. The largest ships "
             "of today are longer than a street.",
}
ESSAY_ASKS = ["Tell me something about {}.", "What do you know about {}?", "Can you tell me about {}?"]

DIARY = [
    "This morning I walked along the {wild} and saw {beast}.",
    "The bus was late again, so I read a few pages of my book.",
    "For lunch there was {food} with {food2}.",
    "At the market a man was selling {fruit} and {flower}.",
    "A child in the street was playing the {instrument}.",
    "In the afternoon the rain stopped and the sky became {colour}.",
    "Somebody had left a {colour} hat on the bench near the {wild}.",
    "Then I drank {drink} in a small cafe and watched the people.",
    "A woman at the next table talked about {city} for an hour.",
    "The film yesterday was about {beast} and a {treasure}.",
    "On the way home I heard a strange noise near the {wild}.",
    "The shop at the corner now sells {treasure2}s.",
    "In the evening I listened to the radio and wrote a letter.",
    "A {colour} bird was sitting on the roof all day.",
    "The lift was broken, so I took the stairs.",
    "There was a long queue at the bakery, but the bread was still warm.",
    "A dancer from {city} was on television last night.",
    "The newspaper wrote about the {wild} and the new bridge.",
    "It was windy, and the leaves were flying around the house.",
    "I found an old photo of {city} between two books.",
]
DIARY_OPENINGS = ["Let me tell you about my day.", "Here is what happened today.", "I want to tell you about "
                  "yesterday.", "Let me read you a page of my diary.", "Listen to this."]
DIARY_REPLIES = ["That sounds like a full day.", "Thank you for telling me about it.", "What a day!",
                 "I like to hear about your day.", "That was nice to read."]


def with_article(noun):
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def diary(rng, sentences):
    """Returns some unrelated sentences. They are distractors, so they use the same words as facts
    do."""
    picked = rng.sample(DIARY, min(sentences, len(DIARY)))
    return " ".join([rng.choice(DIARY_OPENINGS)] + [s.format(
        wild=rng.choice(w.WILDS), beast=with_article(rng.choice(w.BEASTS)), food=rng.choice(w.FOODS),
        food2=rng.choice(w.FOODS), fruit=rng.choice(w.FRUITS), flower=rng.choice(w.FLOWERS),
        instrument=rng.choice(w.INSTRUMENTS), colour=rng.choice(w.COLOURS), drink=rng.choice(w.DRINKS),
        city=rng.choice(w.CITIES), treasure=rng.choice(w.TREASURES),
        treasure2=rng.choice(w.TREASURES)) for s in picked])


def story(rng):
    """Returns a story, and the (question, answer clause, value) triples that it supports. The
    answers use the story's own words, as answers about facts use the assistant's own words."""
    beast, friend = rng.sample(w.BEASTS, 2)
    name, other = rng.sample(w.PEOPLE, 2)
    home, treasure, wild = rng.choice(w.HOMES), with_article(rng.choice(w.TREASURES)), rng.choice(w.WILDS)
    day, colour = rng.choice(w.DAYS), rng.choice(w.COLOURS)
    text = (f"Once upon a time there was {with_article(beast)}. The {beast} was called {name}. "
            f"The {beast} lived in {home}. On a cold {day} the {beast} went to the {wild}. "
            f"There the {beast} found {treasure}. Then {with_article(friend)} came by. "
            f"The {friend} was called {other}. They sat down under {with_article(colour)} sky and shared "
            f"some bread, and the {friend} became a good friend.")
    questions = [
        (f"What was the {beast} called?", f"the {beast} was called {{V}}", name),
        (f"What was the {friend} called?", f"the {friend} was called {{V}}", other),
        (f"Where did the {beast} live?", f"the {beast} lived in {{V}}", home),
        (f"Where did the {beast} go?", f"the {beast} went to {{V}}", f"the {wild}"),
        (f"What did the {beast} find?", f"the {beast} found {{V}}", treasure),
    ]
    return beast, friend, text, questions


def fixed_story(beast):
    """Returns the assistant's own story about a beast, always the same one, so that it can be
    learnt."""
    seed = w.BEASTS.index(beast)
    # takes the first seed, counted from this animal's number, whose story is about this animal
    while True:
        told, friend, text, questions = story(random.Random(1000 + seed))
        if told == beast:
            return friend, text, questions
        seed += len(w.BEASTS)


OWN_STORIES = {b: fixed_story(b) for b in w.BEASTS}
