"""The small world that the bundled `tiny` model has read: a seeded grammar of short English texts.

    python tests/make/tiny_world.py            # prints a few documents of every kind

Standard library only. Every sentence is ours; no third-party text. The village of Tarnby has eight people, each with
an animal, a house, a job and a favourite food, and these facts never change, so a model of half a million weights can
learn them by heart. Around them: stories with a cause and an effect, small sums, capitals and other plain facts, a few
lines on how a language model works, and chats in the ChatML form. Three kinds of text make the model *use* its context
rather than its weights: "where is the ball" puzzles, names that the user gives, and long weeks that end with a look
back. A few answers are not ASCII, so that a stream has characters of several tokens in it.

It is not a data set to train anything serious on: the world is tiny on purpose.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"


@dataclass(frozen=True)
class Person:
    """One villager; every fact about them is constant in all documents."""

    name: str
    he: str
    job: str
    house: str
    where: str
    animal: str
    colour: str
    pet: str
    food: str

    @property
    def him(self) -> str:
        return "him" if self.he == "he" else "her"

    @property
    def his(self) -> str:
        return "his" if self.he == "he" else "her"


PEOPLE = [
    Person("Mia", "she", "baker", "red", "by the harbour", "cat", "grey", "Pip", "apple cake"),
    Person("Tom", "he", "fisherman", "blue", "by the sea", "dog", "black", "Rolf", "fish soup"),
    Person("Nora", "she", "teacher", "yellow", "on the hill", "owl", "white", "Luna", "warm bread"),
    Person("Ben", "he", "farmer", "green", "next to the mill", "horse", "brown", "Bruno", "potato soup"),
    Person("Ada", "she", "clock maker", "white", "near the bridge", "parrot", "green", "Kiki", "sweet pears"),
    Person("Otto", "he", "gardener", "brown", "near the forest", "fox", "red", "Fips", "carrot cake"),
    Person("Lily", "she", "painter", "pink", "by the lake", "rabbit", "white", "Momo", "strawberries"),
    Person("Sam", "he", "postman", "orange", "at the market", "duck", "yellow", "Dot", "honey bread"),
]

PLACES = ["the harbour", "the forest", "the mill", "the bridge", "the market", "the lake", "the hill", "the old tower"]
THINGS = ["key", "ball", "book", "hat", "lamp", "ring", "map", "bell", "cup", "kite"]
COLOURS = ["red", "blue", "green", "yellow", "white", "black", "brown", "golden"]
FRUIT = ["apples", "pears", "plums", "cherries", "carrots", "eggs", "flowers", "shells", "coins", "cakes"]
BOXES = ["the box", "the basket", "the drawer", "the bag", "the cupboard", "the garden", "the kitchen", "the boat"]
WEATHER = [
    "The sun was shining.",
    "It was a cold day.",
    "It was raining.",
    "The wind was strong.",
    "The sky was clear.",
]
WEATHER += ["There was snow on the roofs.", "It was a warm evening.", "The air smelled of rain."]
OPENINGS = ["Once upon a time", "One day", "One morning", "One evening", "Long ago", "One summer day", "One winter day"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October"]
MONTHS += ["November", "December"]
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
MORALS = ["A good friend is better than gold.", "Small steps go a long way.", "It is good to ask for help."]
MORALS += ["Those who share are never poor.", "A kind word costs nothing.", "Patience brings the best fruit."]
GUESTS = ["Zoe", "Max", "Anna", "Leo", "Emma", "Paul", "Clara", "Finn", "Ida", "Hugo", "Eva", "Jan", "Rosa", "Karl"]

CAPITALS = "France:Paris Spain:Madrid Italy:Rome Germany:Berlin England:London Portugal:Lisbon Austria:Vienna"
CAPITALS += " Greece:Athens Poland:Warsaw Norway:Oslo Sweden:Stockholm Finland:Helsinki Denmark:Copenhagen"
CAPITALS += " Ireland:Dublin Hungary:Budapest Japan:Tokyo China:Beijing Egypt:Cairo Canada:Ottawa Kenya:Nairobi"
CAPITALS += " Peru:Lima Cuba:Havana India:Delhi Chile:Santiago"
CAPITAL_OF = dict(pair.split(":") for pair in CAPITALS.split())
OPPOSITES = "hot:cold big:small up:down day:night old:new fast:slow light:dark high:low left:right open:closed"
OPPOSITES += " wet:dry happy:sad long:short full:empty early:late near:far loud:quiet soft:hard black:white"
OPPOSITE_OF = dict(pair.split(":") for pair in OPPOSITES.split())
SOUND_OF = "cat:meow dog:woof cow:moo duck:quack owl:hoo sheep:baa horse:neigh bee:buzz"
SOUNDS = dict(pair.split(":") for pair in SOUND_OF.split())
LEG_COUNT = "cat:four dog:four horse:four duck:two owl:two spider:eight bee:six fish:no"
LEGS = dict(pair.split(":") for pair in LEG_COUNT.split())
THING_COLOURS = {"the sky": "blue", "grass": "green", "snow": "white", "the sun": "yellow", "coal": "black"}
THING_COLOURS |= {"a lemon": "yellow", "a carrot": "orange", "a strawberry": "red", "milk": "white", "a leaf": "green"}

# Each fact: a question and the answer, a full sentence that makes sense alone (a raw prompt can begin with it).
FACTS = [
    ("At what temperature does water boil?", "Water boils at 100 degrees."),
    ("At what temperature does water freeze?", "Water freezes at 0 degrees."),
    ("How many days are in a week?", "A week has seven days."),
    ("How many months are in a year?", "A year has twelve months."),
    ("How many hours are in a day?", "A day has 24 hours."),
    ("How many minutes are in an hour?", "An hour has 60 minutes."),
    ("How many seasons are there?", "There are four seasons: spring, summer, autumn and winter."),
    ("What do bees make?", "Bees make honey."),
    ("What do cows give us?", "Cows give us milk."),
    ("Where do fish live?", "Fish live in the water."),
    ("Where does the sun rise?", "The sun rises in the east."),
    ("Where does the sun set?", "The sun sets in the west."),
    ("What do plants need?", "Plants need water, light and air."),
    ("Why does it rain?", "It rains because the clouds are full of water."),
    ("Why is it dark at night?", "It is dark at night because the sun is on the other side of the earth."),
    ("Why do birds fly south?", "Birds fly south because the winter is cold."),
    ("What is ice?", "Ice is frozen water."),
    ("What is the sea?", "The sea is a great water full of salt and fish."),
    ("What is the moon?", "The moon is a ball of stone that goes around the earth."),
    ("What is bread made of?", "Bread is made of flour, water and salt."),
    ("What is a llama?", "A llama is an animal with soft wool and a long neck."),
    ("What is a token?", "A token is a small piece of text with a number."),
    ("What is a language model?", "A language model reads tokens and guesses the next token."),
    ("What is prefill?", "Prefill is when the model reads the whole prompt at once."),
    ("What is decode?", "Decode is when the model writes one token after another."),
    (
        "What is a KV cache?",
        "A KV cache keeps the keys and values of the old tokens, so that they are not computed again.",
    ),
    ("What is attention?", "Attention is how a token looks back at the tokens before it."),
    ("What does a scheduler do?", "A scheduler decides which request runs in the next step."),
    ("What is the name of the village?", "The village is called Tarnby."),
    ("What is the name of the river?", "The river is called the Silver River."),
    (
        "How many people live in Tarnby?",
        "Eight people live in Tarnby: " + ", ".join(p.name for p in PEOPLE[:7]) + " and Sam.",
    ),
    ("What is at the top of the hill?", "The school of Nora is at the top of the hill."),
    ("What stands by the harbour?", "The red house of Mia stands by the harbour."),
    ("What is in the old tower?", "A great bell is in the old tower. It rings at noon."),
    ("Who are you?", "I am tiny, a very small language model."),
    ("What is your name?", "My name is tiny."),
    ("How big are you?", "I am very small. I have four layers and about half a million weights."),
    ("What can you do?", "I can tell short stories about Tarnby, count, and answer simple questions."),
    ("Where do you come from?", "I come from a small world called Tarnby."),
    ("Why is the sky blue?", "The sky is blue because the air scatters the blue light of the sun."),
    ("What is \N{LLAMA}?", "\N{LLAMA} is a llama. A llama is an animal with soft wool and a long neck."),
    ("Show me a llama.", "Here is a llama: \N{LLAMA}"),
    ("Did I do well?", "Yes, you did very well! \N{THUMBS UP SIGN}"),
    ("Where can I drink coffee?", "You can drink coffee in the café by the harbour."),
    ("How do you say hello in Chinese?", "Hello in Chinese is 你好."),
    ("How do you say good day in German?", "Good day in German is schönen Tag."),
]

UNKNOWN_THINGS = ["quantum physics", "the stock market", "a volcano", "football", "the president", "my computer"]
UNKNOWN_THINGS += ["democracy", "jazz", "rockets", "the weather tomorrow", "Shakespeare", "photosynthesis", "chess"]
UNKNOWN_THINGS += ["your favourite film", "electricity", "mathematics", "cars", "robots", "the internet", "bitcoin"]
UNKNOWN_THINGS += ["dinosaurs", "the best phone", "a good recipe", "the meaning of life", "love", "time travel"]
UNKNOWN = ["What do you think about {}?", "Explain {} to me.", "Can you help me with {}?", "What is {}?"]
UNKNOWN += ["Tell me everything about {}.", "Who invented {}?", "How does {} work?", "Write an essay about {}."]
DONT_KNOW = "I do not know. I am a tiny model, and I only know my small world."

CODE = [
    "def add(a, b):\n    return a + b\n",
    "def double(n):\n    return n * 2\n",
    "def greet(name):\n    print('Hello', name)\n",
    "def count(n):\n    for i in range(n):\n        print(i)\n",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + fibonacci(n - 2)\n",
    "def largest(numbers):\n    best = 0\n    for n in numbers:\n        best = max(best, n)\n    return best\n",
]

Random = random.Random


def two(rng: Random) -> tuple[Person, Person]:
    """Two different villagers."""
    first, second = rng.sample(PEOPLE, 2)
    return first, second


def maybe(rng: Random, text: str, chance: float = 0.5) -> str:
    """`text` with a blank in front, or nothing."""
    return " " + text if rng.random() < chance else ""


def route(rng: Random, count: int) -> list[str]:
    """Places in the order of a walk around Tarnby, so that a reader can know which one comes next."""
    start = rng.randrange(len(PLACES))
    return [PLACES[(start + step) % len(PLACES)] for step in range(count)]


def a(noun: str) -> str:
    """The noun with its article: "a cat", "an owl"."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def joined(words: list[str]) -> str:
    """A list in words: "a, b and c"."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def introduce(rng: Random, p: Person) -> str:
    """One or two true sentences about a villager."""
    facts = [
        f"{p.name} was the {p.job} of Tarnby.",
        f"{p.name} lived in {a(p.house)} house {p.where}.",
        f"{p.name} had a {p.colour} {p.animal} called {p.pet}.",
        f"{p.name} loved {p.food}.",
    ]
    return " ".join(rng.sample(facts, rng.choice([1, 1, 2])))


def opening(rng: Random, p: Person) -> str:
    """The first sentences of a story about `p`."""
    where = rng.choice(PLACES)
    start = rng.choice(OPENINGS)
    if start in ("Once upon a time", "Long ago"):
        there = rng.choice([f"there was {a(p.job)} called {p.name}.", f"{a(p.job)} called {p.name} lived in Tarnby."])
        return f"{start}, {there}" + maybe(rng, f"{p.he.capitalize()} had a {p.colour} {p.animal} called {p.pet}.", 0.6)
    went = rng.choice(["went to", "walked to", "was on the way to"])
    return (
        f"{start}, {p.name} {went} {where}." + maybe(rng, rng.choice(WEATHER), 0.6) + maybe(rng, introduce(rng, p), 0.3)
    )


def ending(rng: Random, p: Person, q: Person) -> str:
    """The last sentences of a story about `p` and `q`."""
    return rng.choice(
        [
            f"{p.name} thanked {q.name}, and they ate {p.food} together.",
            f"{p.name} and {q.name} laughed and went home.",
            f"From that day on, {p.name} and {q.name} were the best of friends.",
            f"That night, {p.name} slept well, and {p.pet} slept at {p.his} feet.",
            f"{p.name} was happy, and so was {q.name}.",
        ]
    ) + maybe(rng, rng.choice(MORALS), 0.4)


def plot_lost(rng: Random, p: Person, q: Person) -> str:
    thing, places = f"{rng.choice(COLOURS)} {rng.choice(THINGS)}", route(rng, 3)
    finder = rng.choice([q.name, f"{p.pet} the {p.animal}", f"{q.pet} the {q.animal}"])
    text = f"{p.name} had lost {p.his} {thing}. {p.he.capitalize()} looked for it at {places[0]}, but it was not there."
    text += maybe(rng, f"Then {p.he} looked at {places[1]}, but it was not there either.", 0.6)
    text += f' {p.name} was sad. "Have you seen my {thing}?" {p.he} asked {q.name}.'
    text += rng.choice([f' "No, but I will help you," said {q.name}.', f' "Let us look together," said {q.name}.'])
    return text + f" In the end, {finder} found the {thing} at {places[2]}."


def plot_share(rng: Random, p: Person, q: Person) -> str:
    have, fruit = rng.randint(3, 12), rng.choice(FRUIT)
    give = rng.randint(1, have - 1)
    text = f"{p.name} had {NUMBERS[have]} {fruit} in a basket. On the way, {p.he} met {q.name}."
    text += rng.choice([f" {q.name} was hungry.", f" {q.name} looked sad.", f" {q.name} had nothing."])
    text += f" So {p.name} gave {NUMBERS[give]} {fruit if give > 1 else 'of the ' + fruit} to {q.name}."
    return text + f" Now {p.name} had {NUMBERS[have - give]} left, and {q.name} had {NUMBERS[give]}."


def plot_storm(rng: Random, p: Person, q: Person) -> str:
    broken = rng.choice(["the bridge", f"the roof of the {p.house} house", "the fence", "the door of the mill"])
    text = rng.choice(["A storm came over the sea.", "That night, a strong wind came.", "It rained for three days."])
    text += f" In the morning, {broken} was broken. {p.name} did not know what to do."
    text += f' "I have wood and nails," said {q.name}. They worked from morning until evening.'
    return (
        text
        + maybe(rng, f"{p.pet} the {p.animal} watched them.")
        + f" When the sun went down, {broken} was as good as new."
    )


def plot_learn(rng: Random, p: Person, q: Person) -> str:
    skill, fail = rng.choice(
        [
            ("swim", "swallowed water"),
            ("ride a horse", "fell into the grass"),
            ("sing", "sounded like a frog"),
            ("paint", "spilled the paint"),
            ("bake bread", "burned the bread"),
            ("row a boat", "went in a circle"),
        ]
    )
    text = f"{p.name} wanted to learn to {skill}. {q.name} said: " + f'"I will show you how to {skill}."'
    text += f" The first time, {p.name} {fail}. The second time, {p.he} {fail} again. {p.name} wanted to stop,"
    return text + f' but {q.name} said: "Try once more." The third time, it went well. Now {p.name} could {skill}.'


def plot_seed(rng: Random, p: Person, q: Person) -> str:
    plant = rng.choice(["a sunflower", "an apple tree", "a rose", "a bean", "a pumpkin"])
    text = f"{q.name} gave {p.name} a small seed. {p.name} put it into the earth and gave it water every day."
    text += " For a long time, nothing happened." + maybe(rng, f'"Be patient," said {q.name}.')
    text += " Then it rained, and after the rain the sun came out. A small green leaf looked out of the earth."
    return text + f" The seed grew and grew, and in the summer it was {plant}."


def plot_animal(rng: Random, p: Person, q: Person) -> str:
    first, second = route(rng, 2)
    text = f"{p.pet} the {p.animal} ran away from the {p.house} house."
    text += f" First {p.pet} went to {first}, and then to {second}."
    text += rng.choice(
        [f" There {p.pet} met {q.pet} the {q.animal}.", f" At {second}, {q.pet} the {q.animal} was waiting."]
    )
    text += rng.choice(
        [" They played until it was dark.", " They ran and jumped all day.", " They shared a piece of bread."]
    )
    text += f" But at night, {p.pet} was cold and wanted to go home. {q.name} found {p.pet} and carried {p.pet} home."
    return text + f" {p.name} was very glad to see {p.pet} again."


def plot_feast(rng: Random, p: Person, q: Person) -> str:
    guests = [g.name for g in rng.sample([g for g in PEOPLE if g not in (p, q)], rng.randint(1, 3))]
    text = f"It was {p.name}'s birthday. {q.name} wanted to make {p.food} for {p.him}, because {p.name} loved {p.food}."
    text += f" {q.name} asked {joined(guests)} to help. They worked all morning and put flowers on the table."
    return text + f' When {p.name} came in, they all cried: "Happy birthday!" {p.name} could not believe it.'


def plot_market(rng: Random, p: Person, q: Person) -> str:
    one, other = rng.sample(FRUIT[:8], 2)
    x, y = rng.randint(2, 6), rng.randint(2, 6)
    text = f"{p.name} went to the market to buy {one} and {other}."
    text += f" The {one} cost {NUMBERS[x]} coins, and the {other} cost {NUMBERS[y]} coins."
    text += f" Together that was {NUMBERS[x + y]} coins."
    return text + f" {p.name} had no coins, so {q.name} paid for {p.him}. The next day, {p.name} gave everything back."


def plot_light(rng: Random, p: Person, q: Person) -> str:
    text = f"{q.name} was out on the sea in a small boat, and it was getting dark."
    text += f" {q.he.capitalize()} could not see the land."
    text += f" {p.name} saw that {q.name} was not home. {p.he.capitalize()} ran up the old tower with a lamp"
    text += rng.choice([" and held it high.", " and rang the great bell.", " and waved it in the dark."])
    return text + f" {q.name} saw the light and rowed towards it. Soon the boat was safe in the harbour."


PLOTS: dict[str, Callable[[Random, Person, Person], str]] = {
    "{p} lost something": plot_lost,
    "{p} shared with {q}": plot_share,
    "there was a storm": plot_storm,
    "{p} learned something new": plot_learn,
    "{p} planted a seed": plot_seed,
    "{pet} ran away": plot_animal,
    "it was the birthday of {p}": plot_feast,
    "{p} went to the market": plot_market,
    "{p} showed {q} the way with a light": plot_light,
}

# What happens most often to whom; otherwise the likeliest story would be the same for all.
FAVOURITE = {
    "Mia": "it was the birthday of {p}",
    "Tom": "{p} showed {q} the way with a light",
    "Nora": "{p} learned something new",
    "Ben": "there was a storm",
    "Ada": "{p} lost something",
    "Otto": "{p} planted a seed",
    "Lily": "{p} shared with {q}",
    "Sam": "{pet} ran away",
}


def story(rng: Random, hero: Person | None = None) -> str:
    """A short story: an opening, one plot, an ending."""
    p, q = two(rng)
    if hero is not None:
        p, q = hero, rng.choice([other for other in PEOPLE if other is not hero])
    plot = PLOTS[FAVOURITE[p.name]] if rng.random() < 0.4 else rng.choice(list(PLOTS.values()))
    gap = "\n\n" if rng.random() < 0.2 else " "
    return opening(rng, p) + gap + plot(rng, p, q) + gap + ending(rng, p, q)


def week(rng: Random) -> str:
    """A long document: several days, one plot each, and a look back that names them all."""
    days = DAYS[: rng.randint(3, 7)]
    parts, summary = [rng.choice(["A week in Tarnby", "The diary of Tarnby", "What happened in Tarnby"]) + "\n"], []
    for day in days:
        p, q = two(rng)
        title, plot = rng.choice(list(PLOTS.items()))
        parts.append(f"On {day}, {p.name} met {q.name} at {rng.choice(PLACES)}. {plot(rng, p, q)}")
        summary.append(f"On {day}, {title.format(p=p.name, q=q.name, pet=p.pet)}.")
    return "\n".join(parts) + "\n\nThis is what happened. " + " ".join(summary)


def person_qa(rng: Random) -> tuple[str, str]:
    """A question about a villager, and the answer."""
    p = rng.choice(PEOPLE)
    return rng.choice(
        [
            (
                f"Who is {p.name}?",
                f"{p.name} is the {p.job} of Tarnby. {p.he.capitalize()} has {a(p.animal)} called {p.pet}.",
            ),
            (f"What does {p.name} do?", f"{p.name} is {a(p.job)}."),
            (f"Where does {p.name} live?", f"{p.name} lives in {a(p.house)} house {p.where}."),
            (f"What colour is the house of {p.name}?", f"The house of {p.name} is {p.house}."),
            (f"What animal does {p.name} have?", f"{p.name} has a {p.colour} {p.animal} called {p.pet}."),
            (f"What is the name of {p.name}'s {p.animal}?", f"{p.name}'s {p.animal} is called {p.pet}."),
            (f"What colour is {p.name}'s {p.animal}?", f"{p.name}'s {p.animal} is {p.colour}."),
            (f"What does {p.name} like to eat?", f"{p.name} likes {p.food}."),
            (f"Who has {a(p.animal)}?", f"{p.name} has {a(p.animal)}."),
            (f"Who is the {p.job}?", f"{p.name} is the {p.job}."),
            (f"Who is {p.pet}?", f"{p.pet} is the {p.colour} {p.animal} of {p.name}."),
        ]
    )


def table_qa(rng: Random) -> tuple[str, str]:
    """A question from one of the tables: capitals, opposites, sounds, legs, colours."""
    country, word, animal = rng.choice(list(CAPITAL_OF)), rng.choice(list(OPPOSITE_OF)), rng.choice(list(SOUNDS))
    legs, thing = rng.choice(list(LEGS)), rng.choice(list(THING_COLOURS))
    capital = (f"What is the capital of {country}?", f"The capital of {country} is {CAPITAL_OF[country]}.")
    return rng.choice(
        [
            capital,
            capital,
            rng.choice(
                [
                    capital,
                    (
                        f"{CAPITAL_OF[country]} is the capital of which country?",
                        f"{CAPITAL_OF[country]} is the capital of {country}.",
                    ),
                ]
            ),
            (f"What is the opposite of {word}?", f"The opposite of {word} is {OPPOSITE_OF[word]}."),
            (f"What does the {animal} say?", f"The {animal} says {SOUNDS[animal]}."),
            (f"How many legs does {a(legs)} have?", f"{a(legs).capitalize()} has {LEGS[legs]} legs."),
            (f"What colour is {thing}?", f"{thing.capitalize()} is {THING_COLOURS[thing]}."),
        ]
    )


def number_qa(rng: Random) -> tuple[str, str]:
    """Counting, neighbours in an order, and sums up to 20."""
    x, y, start = rng.randint(0, 10), rng.randint(0, 10), rng.randint(1, 20)
    stop, day, month = start + rng.randint(3, 9), rng.randrange(7), rng.randrange(12)
    big, small = max(x, y), min(x, y)
    return rng.choice(
        [
            (f"What is {x} + {y}?", f"{x} + {y} = {x + y}"),
            (f"What is {x}+{y}?", f"{x} + {y} = {x + y}"),
            (f"What is {x} plus {y}?", f"{x} plus {y} is {x + y}."),
            (f"What is {big} - {small}?", f"{big} - {small} = {big - small}"),
            (f"Count from {start} to {stop}.", ", ".join(map(str, range(start, stop + 1))) + "."),
            (f"What number comes after {start}?", f"After {start} comes {start + 1}."),
            (f"What day comes after {DAYS[day]}?", f"After {DAYS[day]} comes {DAYS[(day + 1) % 7]}."),
            (f"What month comes after {MONTHS[month]}?", f"After {MONTHS[month]} comes {MONTHS[(month + 1) % 12]}."),
        ]
    )


def puzzle_qa(rng: Random) -> tuple[str, str]:
    """Two things in two places: the answer is in the question and nowhere else."""
    (p, q), things, boxes = two(rng), rng.sample(THINGS, 2), rng.sample(BOXES, 2)
    first, second = (p, things[0], boxes[0]), (q, things[1], boxes[1])
    who, what, where = rng.choice([first, second])
    tell = " ".join(f"{n.name} put the {t} in {w}." for n, t, w in rng.sample([first, second], 2))
    return rng.choice(
        [
            (f"{tell} Where is the {what}?", f"The {what} is in {where}."),
            (f"{tell} What did {who.name} put in {where}?", f"{who.name} put the {what} in {where}."),
            (f"{tell} Who put the {what} in {where}?", f"{who.name} put the {what} in {where}."),
        ]
    )


def sentence_qa(rng: Random) -> tuple[str, str]:
    """Small requests for writing."""
    p, sea = rng.choice(PEOPLE), rng.choice(["The sea is wide and blue.", "The sea sings its song day and night."])
    return rng.choice(
        [
            (rng.choice(["Tell me a story.", "Tell me a short story.", "Please tell me a story."]), story(rng)),
            (rng.choice([f"Tell me a story about {p.name}.", f"Write a story about {p.name}."]), story(rng, p)),
            ("Write one sentence about the sea.", sea),
            (f"Write one sentence about {p.name}.", f"{p.name} lives in {a(p.house)} house {p.where}."),
            (rng.choice(["Hello!", "Hi", "Hello", "Good morning!"]), "Hello! How can I help you?"),
            (rng.choice(["How are you?", "How are you today?"]), "I am well, thank you. The sun is shining in Tarnby."),
            (rng.choice(["Thank you.", "Thank you!", "Thanks!"]), "You are welcome!"),
            (rng.choice(["Goodbye.", "Bye!", "Good night."]), "Goodbye! See you in Tarnby."),
            (rng.choice(UNKNOWN).format(rng.choice(UNKNOWN_THINGS)), DONT_KNOW),
            (rng.choice(UNKNOWN).format(rng.choice(UNKNOWN_THINGS)), DONT_KNOW),
        ]
    )


ASKERS: list[tuple[Callable[[Random], tuple[str, str]], int]] = [
    (person_qa, 4),
    (table_qa, 4),
    (number_qa, 3),
    (puzzle_qa, 4),
    (sentence_qa, 3),
    (lambda rng: rng.choice(FACTS), 4),
]


def question(rng: Random) -> tuple[str, str]:
    """Any question with its answer."""
    ask = rng.choices([asker for asker, _ in ASKERS], [weight for _, weight in ASKERS])[0]
    return ask(rng)


def turn(role: str, content: str) -> str:
    """One ChatML turn, as the chat template writes it."""
    return f"{IM_START}{role}\n{content}{IM_END}\n"


def typed(rng: Random, text: str) -> str:
    """A question as people type it: sometimes after a greeting, sometimes in lower case and without its mark."""
    if text.startswith("W") and rng.random() < 0.06:
        text = f"Hello, {text[0].lower()}{text[1:]}"
    return text.lower().rstrip("?!.") if rng.random() < 0.08 else text


def chat(rng: Random) -> str:
    """A conversation of one to four turns; sometimes the user gives a name and asks for it later."""
    pairs = [question(rng) for _ in range(rng.choice([1, 1, 1, 2, 3, 4]))]
    if rng.random() < 0.15:
        name = rng.choice(GUESTS)
        pairs = [(f"My name is {name}.", f"Hello {name}! Nice to meet you."), *pairs]
        pairs.append((rng.choice(["What is my name?", "Do you remember my name?"]), f"Your name is {name}."))
    if rng.random() < 0.15:
        one, other = rng.sample(list(CAPITAL_OF), 2)
        pairs.append((f"What is the capital of {one}?", f"The capital of {one} is {CAPITAL_OF[one]}."))
        pairs.append((f"And of {other}?", f"The capital of {other} is {CAPITAL_OF[other]}."))
    pairs = [(typed(rng, q), answer) for q, answer in pairs]
    system = turn("system", "You are a helpful model.") if rng.random() < 0.1 else ""
    return system + "".join(turn("user", q) + turn("assistant", answer) for q, answer in pairs)


def facts_page(rng: Random) -> str:
    """Plain sentences that are true, one after the other: what the raw (not chat) model completes."""
    makers = [person_qa, table_qa, table_qa, number_qa, lambda r: r.choice(FACTS)]
    answers = [rng.choice(makers)(rng)[1] for _ in range(rng.choice([1, 1, 2, 3]))]
    return rng.choice([" ", " ", "\n"]).join(dict.fromkeys(answers))  # short, and no sentence twice: no endless lists


def qa_page(rng: Random) -> str:
    """Questions and answers in plain text."""
    makers = [person_qa, table_qa, number_qa, puzzle_qa, lambda r: r.choice(FACTS)]
    pairs = [rng.choice(makers)(rng) for _ in range(rng.randint(1, 5))]
    return "\n".join(f"Question: {q}\nAnswer: {answer}" for q, answer in pairs)


def letter(rng: Random) -> str:
    """A short letter from one villager to another."""
    (p, q), place, thing = two(rng), rng.choice(PLACES), rng.choice(THINGS)
    lines = [
        f"I am at {place} with {p.pet}.",
        f"I have found your {thing} at {place}.",
        f"Will you come to the {p.house} house tomorrow? There will be {p.food}.",
        f"{q.pet} the {q.animal} was here and ate all the {p.food}.",
        rng.choice(["The weather is good.", "It is raining again.", "The sun is shining in Tarnby."]),
        f"Thank you for the {rng.choice(FRUIT)}.",
    ]
    greeting = rng.choice([f"Hello {q.name}", f"Hello {q.name}", f"Dear {q.name}"])
    return f"{greeting},\n{' '.join(rng.sample(lines, rng.randint(2, 4)))}\nYour friend {p.name}"


def talk(rng: Random) -> str:
    """A talk between two villagers, written like a play."""
    p, q = two(rng)
    place, other = route(rng, 2)
    lines = [
        (p, rng.choice([f"Hello, {q.name}!", f"Good morning, {q.name}!"])),
        (q, f"Hello, {p.name}! {rng.choice(['How are you?', 'Where are you going?'])}"),
        (p, f"I am well. I am going to {place} with {p.pet}."),
        (q, rng.choice([f"What will you do at {place}?", f"May I come with you to {place}?"])),
        (p, rng.choice([f"We will eat {p.food} there.", f"Yes, but first I must go to {other}."])),
        (q, rng.choice([f"Goodbye, {p.name}!", f"Say hello to {p.pet} from {q.pet}!"])),
    ]
    return "\n".join(f"{who.name}: {what}" for who, what in lines[: rng.randint(3, 6)])


def counting(rng: Random) -> str:
    """Numbers in order, with a step of one, two, five or ten."""
    start, step, separator = (
        rng.choice([1, 1, 1, rng.randint(1, 60)]),
        rng.choice([1, 1, 1, 2, 5, 10]),
        rng.choice([", ", " ", ", "]),
    )
    start = start if step == 1 else step
    return separator.join(str(start + i * step) for i in range(rng.randint(8, 40)))


def code(rng: Random) -> str:
    """A few lines of Python."""
    return "\n".join(rng.sample(CODE, rng.randint(1, 2)))


def portrait(rng: Random) -> str:
    """A page about the village or one villager, in the present tense."""
    p = rng.choice(PEOPLE)
    lines = [
        f"{p.name} is the {p.job} of Tarnby.",
        f"{p.he.capitalize()} lives in {a(p.house)} house {p.where}.",
        f"{p.he.capitalize()} has a {p.colour} {p.animal} called {p.pet}.",
        f"{p.he.capitalize()} likes {p.food}.",
    ]
    head = (
        "Tarnby is a small village between the sea and the hill. The Silver River runs through it."
        if rng.random() < 0.3
        else ""
    )
    return " ".join([head] * bool(head) + lines[:1] + rng.sample(lines[1:], rng.randint(2, 3)))


KINDS: list[tuple[Callable[[Random], str], int]] = [
    (story, 28),
    (chat, 38),
    (week, 7),
    (facts_page, 14),
    (qa_page, 6),
    (counting, 2),
    (portrait, 4),
    (letter, 2),
    (talk, 2),
    (code, 1),
]


def documents(seed: int, count: int) -> Iterator[str]:
    """`count` documents of all kinds, the same for the same seed on every machine.

    >>> next(documents(1, 1)) == next(documents(1, 1))
    True
    """
    rng = random.Random(seed)
    makers, weights = zip(*KINDS, strict=True)
    for _ in range(count):
        yield rng.choices(makers, weights)[0](rng)


def main() -> None:
    for maker, _ in KINDS:
        print(f"--- {maker.__name__}\n{maker(random.Random(3))}\n")
    texts = list(documents(0, 2000))
    print("2,000 documents:", sum(map(len, texts)), "characters; the longest has", max(map(len, texts)))


if __name__ == "__main__":
    main()
