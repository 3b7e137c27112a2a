"""Word lists of the demo grammar. Written for this project; nothing is copied from a corpus."""


def split(text):
    return [w.strip() for w in text.replace("\n", " ").split(",") if w.strip()]


PEOPLE = split("""
Ada, Agnes, Albert, Alma, Amir, Anton, Astrid, Aron, Beatrice, Bela, Bruno, Camille, Carla, Cedric,
Clara, Conrad, Dalia, Daniel, Dario, Dora, Edith, Edgar, Elena, Elias, Elsa, Emil, Enzo, Erika, Esther,
Fabian, Felix, Fiona, Flora, Frida, Gabriel, Gemma, Georg, Greta, Gustav, Hanna, Harold, Hector,
Hilda, Hugo, Ida, Igor, Ines, Ingrid, Irene, Isaac, Ivan, Jana, Jasper, Joan, Jonas, Judith, Julia,
Kamil, Karin, Katya, Klara, Lars, Laura, Leila, Leo, Lidia, Lina, Linus, Lotte, Lucas, Lucia, Luis, Magda,
Marco, Maria, Marta, Martin, Mateo, Mathilde, Maya, Milan, Mina, Mira, Mona, Nadia, Natalie, Nora, Nils,
Noel, Olga, Olivia, Omar, Oscar, Otto, Paula, Pedro, Petra, Philip, Quentin, Rafael, Ramona, Rita, Robert,
Rosa, Ruth, Samir, Samuel, Sara, Selma, Silvia, Simon, Sofia, Stella, Sven, Tamara, Tariq, Theo, Thomas,
Tilda, Tobias, Ursula, Valentin, Vera, Victor, Viola, Walter, Wanda, Werner, Wilma, Xenia, Yara, Yusuf,
Zara, Zelda""")

PET_NAMES = split("""
Acorn, Apollo, Bagel, Bandit, Banjo, Barley, Basil, Bean, Biscuit, Blossom, Bramble, Button, Buttons,
Cactus, Caramel, Cashew, Chester, Cinder, Cinnamon, Clover, Cobalt, Cocoa, Comet, Cookie, Copper, Cosmo,
Crumpet, Daisy, Dakota, Domino, Dumpling, Dusty, Echo, Ember, Fern, Fidget, Figaro, Flint, Freckles, Fudge,
Gadget, Ginger, Gizmo, Hazel, Hobbit, Honey, Jasmine, Jellybean, Juniper, Kiwi, Latte, Lucky, Maple, Marble,
Marmalade, Meadow, Merlin, Midnight, Misty, Mocha, Muffin, Nacho, Nimbus, Noodle, Nugget, Nutmeg, Olive,
Onyx, Oreo, Paprika, Patches, Peanut, Pebble, Pepper, Pickle, Pippin, Pixel, Poppy, Pretzel, Pudding,
Pumpkin, Quill, Raisin, Rascal, Rocket, Rosie, Rufus, Rusty, Saffron, Sage, Scout, Shadow, Smokey,
Snowball, Socks, Sparky, Storm, Sunny, Taffy, Tango, Teddy, Thistle, Tiger, Toffee, Truffle, Turnip,
Twiggy, Velvet, Waffles, Whisper, Willow, Winston, Ziggy, Zorro""")

CITIES = split("""
Accra, Amsterdam, Antwerp, Athens, Auckland, Bangkok, Barcelona, Basel, Beirut, Belgrade, Bergen, Berlin,
Bern, Bilbao, Bogota, Bologna, Boston, Bremen, Bristol, Brussels, Budapest, Cairo, Calgary, Cardiff, Chicago,
Cologne, Copenhagen, Cordoba, Cork, Dakar, Delhi, Dresden, Dublin, Edinburgh, Florence, Geneva, Genoa, Ghent,
Glasgow, Granada, Graz, Hamburg, Hanoi, Havana, Helsinki, Istanbul, Izmir, Jakarta, Kiel, Krakow, Kyoto,
Lagos, Leeds, Leipzig, Lima, Lisbon, Liverpool, Ljubljana, London, Lyon, Madrid, Malaga, Manila, Marseille,
Melbourne, Milan, Montreal, Munich, Nairobi, Naples, Nice, Osaka, Oslo, Ottawa, Oxford, Palermo, Paris,
Perth, Porto, Prague, Quito, Riga, Rome, Rotterdam, Salzburg, Santiago, Seoul, Seville, Sofia, Stockholm,
Sydney, Tallinn, Tokyo, Toronto, Toulouse, Trieste, Tunis, Turin, Utrecht, Valencia, Venice, Verona,
Vienna, Vilnius, Warsaw, York, Zagreb, Zurich""")

JOBS = split("""
an actor, an architect, an artist, a baker, a barber, a beekeeper, a builder, a butcher, a carpenter,
a chef, a chemist, a clerk, a coach, a composer, a cook, a dancer, a dentist, a designer, a doctor,
a driver, an editor, an electrician, an engineer, a farmer, a firefighter, a fisherman, a florist,
a gardener, a geologist, a guide, a hairdresser, a journalist, a judge, a lawyer, a librarian,
a locksmith, a mechanic, a miller, a musician, a nurse, an optician, a painter, a pharmacist,
a photographer, a pilot, a plumber, a poet, a potter, a printer, a sailor, a sculptor, a shepherd,
a singer, a surgeon, a tailor, a teacher, a translator, a vet, a waiter, a watchmaker, a weaver, a writer""")

COLOURS = split("""
red, blue, green, yellow, orange, purple, pink, brown, black, white, grey, golden, silver, turquoise,
violet, crimson, beige, ivory, scarlet, emerald, amber, indigo, lilac, maroon""")

FOODS = split("""
pizza, pasta, soup, rice, curry, salad, pancakes, dumplings, noodles, lasagne, risotto, stew, sushi, tacos,
omelette, porridge, cheese, bread, sausages, chocolate, ice cream, apple pie, carrot cake, fried fish,
roast chicken, potatoes, lentils, beans, mushrooms, meatballs, goulash, paella, ravioli, couscous, falafel,
hummus, toast, waffles, muffins, popcorn""")
DRINKS = split("""
tea, coffee, milk, lemonade, cocoa, apple juice, orange juice, water, ginger beer, mint tea, tomato juice,
iced tea, cider, espresso, green tea, grape juice, buttermilk, hot chocolate""")
FRUITS = split("""
apples, pears, plums, cherries, grapes, peaches, apricots, bananas, mangos, melons, figs, kiwis, lemons,
oranges, strawberries, raspberries, blueberries, pineapples, papayas, dates""")
FLOWERS = split("""
roses, tulips, lilies, daisies, violets, poppies, sunflowers, orchids, irises, peonies, dahlias, crocuses,
bluebells, lavender, snowdrops, carnations""")
SPORTS = split("""
tennis, football, swimming, rowing, chess, cycling, running, sailing, skiing, climbing, boxing, hockey,
cricket, golf, fencing, judo, archery, surfing, badminton, volleyball""")
INSTRUMENTS = split("""
piano, violin, guitar, cello, flute, trumpet, harp, clarinet, drums, saxophone, accordion, banjo, oboe,
organ, trombone, mandolin, bassoon, ukulele""")
LANGUAGES = split("""
French, German, Spanish, Italian, Greek, Dutch, Danish, Swedish, Finnish, Polish, Czech, Turkish, Arabic,
Hebrew, Japanese, Korean, Chinese, Hindi, Swahili, Welsh, Irish, Portuguese, Russian, Hungarian""")
ANIMALS = split("""
elephants, tigers, lions, dolphins, penguins, giraffes, zebras, camels, koalas, kangaroos, whales, seals,
eagles, swans, deer, squirrels, bats, monkeys, pandas, leopards""")
MONTHS = split("""January, February, March, April, May, June, July, August, September, October, November,
December""")
DAYS = split("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday")

PETS = split("""dog, cat, parrot, rabbit, horse, hamster, goldfish, tortoise, donkey, goat, pony, canary,
ferret, lizard""")
RELATIVES = split("""brother, sister, mother, father, aunt, uncle, cousin, grandmother, grandfather, neighbour,
boss, teacher, dentist, best friend, flatmate, niece, nephew, doctor, landlord, colleague""")
COLOURED = split("""car, bicycle, house, coat, hat, boat, front door, sofa, scarf, suitcase, kitchen, tent""")
NUMBERED = split("""locker, house, hotel room, seat, bus, flight, ticket, platform, table, customer""")
LOST_ONE = split("""passport, wallet, watch, notebook, camera, map, ring, torch, charger, diary, compass,
toolbox""")
LOST_MANY = split("keys, glasses, gloves, scissors, letters, boots, headphones, tickets")
SPOTS = split("""kitchen, attic, garage, cellar, bathroom, office, garden shed, hallway, drawer, cupboard,
bookcase, wardrobe, sofa, bed, piano, clock, desk, fridge, mirror, armchair, basket, staircase, stove,
window, bench, fireplace, carpet, lamp, bucket, cradle""")
INSIDE = set(split("""kitchen, attic, garage, cellar, bathroom, office, garden shed, hallway, drawer, cupboard,
bookcase, wardrobe, basket, bucket, fridge, cradle, desk"""))
PLACES = [("in the " if s in INSIDE else "") + s for s in SPOTS if s in INSIDE] + \
         [f"{p} the {s}" for s in SPOTS for p in ("behind", "beside", "near")] + \
         [f"under the {s}" for s in SPOTS if s not in
          ("kitchen", "attic", "garage", "cellar", "bathroom", "office", "hallway")]
ERRANDS = [f"{v} the {o}" for v, os in (
    ("visit", "museum, castle, library, zoo, market, gallery, harbour, cathedral"),
    ("paint", "fence, ceiling, gate, shed, hallway, balcony"),
    ("repair", "bicycle, roof, radio, tractor, oven, lamp"),
    ("clean", "windows, garage, chimney, cellar, carpets, oven"),
    ("plant", "tulips, tomatoes, hedge, cherry tree, beans, roses"),
    ("call", "plumber, bank, school, electrician, hospital, landlord")) for o in split(os)] + \
    [f"{v} {n}" for v in ("meet", "call", "visit") for n in PEOPLE[::4]] + \
    split("""go to the dentist, go to the cinema, go to the opera, go to the theatre, bake a cake, buy a coat,
    sell the car, wash the dog, write a letter, climb a mountain, cook for the neighbours, play chess""")

# Stories: animals that are never a pet, so that a story is a distractor but not a contradiction.
BEASTS = split("fox, owl, bear, hare, mouse, badger, heron, wolf, otter, frog, hedgehog, crow, mole, beaver")
HOMES = split("""an old mill, a dark cave, a hollow tree, a small cottage, a ruined tower, a quiet barn, a deep
burrow, a wooden hut, a stone bridge, an empty chapel""")
TREASURES = [f"{a} {n}" for a in split("silver, golden, broken, tiny, rusty, wooden, shining, painted")
             for n in split("key, bell, lantern, crown, flute, mirror, spoon, box, compass, whistle, coin, ring")]
WILDS = split("""river, lake, forest, hill, meadow, old road, village, bridge, waterfall, well, orchard, marsh""")

SYLLABLES = split("""ba, be, bi, bo, da, de, di, do, fa, fi, ga, go, ka, ke, ki, ko, la, le, li, lo, lu, ma, me,
mi, mo, na, ne, ni, no, pa, pe, pi, ra, re, ri, ro, sa, se, si, so, ta, te, ti, to, va, ve, vi, vo, za,
ze, zi, zo""")
ENDINGS = split("n, r, s, l, x, th, nd, , , ,") + ["", "", ""]
