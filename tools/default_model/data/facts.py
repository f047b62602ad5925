"""Common facts, each with many ways to ask. In every category the last ways to ask are kept for evaluation."""

from .spin import expand, pick

_CAPITALS = """France:Paris|Italy:Rome|Spain:Madrid|Germany:Berlin|England:London|Austria:Vienna|Greece:Athens|Portugal:Lisbon|Ireland:Dublin|Poland:Warsaw|Norway:Oslo|
Sweden:Stockholm|Finland:Helsinki|Denmark:Copenhagen|Hungary:Budapest|Belgium:Brussels|Russia:Moscow|Japan:Tokyo|China:Beijing|India:Delhi|Egypt:Cairo|Kenya:Nairobi|
Canada:Ottawa|Cuba:Havana|Peru:Lima|Chile:Santiago|Thailand:Bangkok|Vietnam:Hanoi|Iceland:Reykjavik|Croatia:Zagreb|Romania:Bucharest|Bulgaria:Sofia|Ukraine:Kyiv|
Turkey:Ankara|Iran:Tehran|Iraq:Baghdad|Nepal:Kathmandu|Australia:Canberra|Brazil:Brasilia|Colombia:Bogota|Ecuador:Quito|Argentina:Buenos Aires|Morocco:Rabat|
South Korea:Seoul|Indonesia:Jakarta|Serbia:Belgrade|Switzerland:Bern|the Netherlands:Amsterdam|New Zealand:Wellington|the Philippines:Manila""".replace("\n", "")
_LANGUAGES = """France:French|Italy:Italian|Spain:Spanish|Germany:German|England:English|Greece:Greek|Portugal:Portuguese|Poland:Polish|Norway:Norwegian|Sweden:Swedish|
Finland:Finnish|Denmark:Danish|Hungary:Hungarian|Russia:Russian|Japan:Japanese|China:Chinese|Turkey:Turkish|Brazil:Portuguese|Mexico:Spanish|Austria:German|Egypt:Arabic|Thailand:Thai|Vietnam:Vietnamese|Romania:Romanian""".replace("\n", "")
_CONTINENTS = """France:Europe|Italy:Europe|Spain:Europe|Germany:Europe|Poland:Europe|Norway:Europe|Greece:Europe|Japan:Asia|China:Asia|India:Asia|Thailand:Asia|Vietnam:Asia|Nepal:Asia|
Egypt:Africa|Kenya:Africa|Morocco:Africa|Nigeria:Africa|Ghana:Africa|Canada:North America|Mexico:North America|Brazil:South America|Peru:South America|Chile:South America|Argentina:South America|Colombia:South America""".replace("\n", "")
_BABIES = "dog:puppy|cat:kitten|cow:calf|horse:foal|sheep:lamb|goat:kid|pig:piglet|duck:duckling|goose:gosling|hen:chick|bear:cub|lion:cub|frog:tadpole|swan:cygnet|deer:fawn|kangaroo:joey|owl:owlet|butterfly:caterpillar"
_SOUNDS = "dog:barks|cat:meows|cow:moos|sheep:bleats|horse:neighs|pig:oinks|duck:quacks|lion:roars|wolf:howls|frog:croaks|snake:hisses|bee:buzzes|owl:hoots|mouse:squeaks|crow:caws|donkey:brays"
_COLORS = "the sky:blue|grass:green|snow:white|coal:black|blood:red|a lemon:yellow|a banana:yellow|a tomato:red|a carrot:orange|a strawberry:red|milk:white|the night:black|a cucumber:green|an orange:orange|a swan:white|a crow:black|a frog:green|chocolate:brown|an elephant:grey|a flamingo:pink|salt:white|spinach:green|a fire engine:red|the sun:yellow|a cherry:red"
_OPPOSITES = """hot:cold|big:small|tall:short|fast:slow|day:night|old:young|happy:sad|light:dark|up:down|left:right|open:closed|full:empty|wet:dry|hard:soft|good:bad|rich:poor|strong:weak|
loud:quiet|clean:dirty|early:late|near:far|first:last|thick:thin|heavy:light|wide:narrow|deep:shallow|sharp:blunt|true:false|inside:outside|above:below|always:never|summer:winter|love:hate|begin:end|buy:sell|win:lose|push:pull|black:white|north:south|east:west""".replace("\n", "")
_HOMES = "bird:nest|bee:hive|spider:web|lion:den|horse:stable|pig:sty|dog:kennel|rabbit:burrow|ant:anthill|hen:coop|fox:den|cow:barn|beaver:lodge"
_MADE = "bread:flour|cheese:milk|butter:milk|glass:sand|paper:wood|wine:grapes|chocolate:cocoa beans|honey:nectar|yogurt:milk|a candle:wax|ice:water|a tyre:rubber|a pot:clay|omelettes:eggs|raisins:grapes|a brick:clay"
_LEGS = "dog:four|cat:four|cow:four|horse:four|spider:eight|ant:six|bee:six|hen:two|duck:two|snake:no|beetle:six|fly:six|fish:no|person:two|elephant:four|butterfly:six|octopus:no"
_WORKS = "teacher:a school|nurse:a hospital|farmer:a farm|baker:a bakery|pilot:an aeroplane|judge:a court|chef:a kitchen|librarian:a library|actor:a theatre|sailor:a ship|waiter:a restaurant|miner:a mine|astronaut:space|priest:a church"
_TOOLS = "cut paper:scissors|write:a pen|hammer nails:a hammer|tell the time:a clock|see far away stars:a telescope|open a lock:a key|eat soup:a spoon|sweep the floor:a broom|take photos:a camera|measure temperature:a thermometer|dig a hole:a shovel|brush your teeth:a toothbrush|find north:a compass|cut bread:a knife|comb your hair:a comb|sew cloth:a needle|stay dry in the rain:an umbrella|look at tiny things:a microscope|row a boat:oars|paint a wall:a brush"
_AFTER = "Monday:Tuesday|Tuesday:Wednesday|Wednesday:Thursday|Thursday:Friday|Friday:Saturday|Saturday:Sunday|Sunday:Monday|January:February|February:March|March:April|April:May|May:June|June:July|July:August|August:September|September:October|October:November|November:December|December:January|spring:summer|summer:autumn|autumn:winter|winter:spring"
_KINDS = "rose:flower|oak:tree|salmon:fish|eagle:bird|ant:insect|carrot:vegetable|apple:fruit|piano:instrument|hammer:tool|tulip:flower|pine:tree|shark:fish|sparrow:bird|bee:insect|banana:fruit|violin:instrument|red:colour|gold:metal|iron:metal|tennis:sport|football:sport|potato:vegetable|cherry:fruit|drum:instrument|penguin:bird|silver:metal|chair:piece of furniture|table:piece of furniture|whale:mammal|snake:reptile|lizard:reptile|frog:amphibian"

_NUMBERS = [("days are in a week", "seven"), ("months are in a year", "twelve"), ("hours are in a day", "twenty-four"), ("minutes are in an hour", "sixty"), ("seconds are in a minute", "sixty"), ("seasons are in a year", "four"),
            ("letters are in the alphabet", "twenty-six"), ("fingers are on one hand", "five"), ("sides does a triangle have", "three"), ("sides does a square have", "four"), ("wheels does a bicycle have", "two"),
            ("wheels does a car have", "four"), ("eyes does a person have", "two"), ("planets are in the solar system", "eight"), ("days are in a leap year", "366"), ("players are in a football team", "eleven"),
            ("strings does a violin have", "four"), ("colours are in a rainbow", "seven"), ("things are in a dozen", "twelve"), ("years are in a century", "one hundred"), ("cents are in a dollar", "one hundred"), ("sides does a hexagon have", "six"),
            ("corners does a cube have", "eight"), ("weeks are in a year", "fifty-two"), ("continents are there on Earth", "seven")]

_CUSTOM = [  # (what is asked, as a noun phrase; the answer; a sentence)
    ("the largest planet", "Jupiter", "Jupiter is the largest planet."), ("the largest ocean", "the Pacific", "The Pacific is the largest ocean."), ("the highest mountain", "Mount Everest", "Mount Everest is the highest mountain."),
    ("the longest river in Africa", "the Nile", "The Nile is the longest river in Africa."), ("the fastest land animal", "the cheetah", "The cheetah is the fastest land animal."), ("the largest animal", "the blue whale", "The blue whale is the largest animal."),
    ("the tallest animal", "the giraffe", "The giraffe is the tallest animal."), ("the star closest to Earth", "the sun", "The sun is the star closest to Earth."), ("the planet closest to the sun", "Mercury", "Mercury is the planet closest to the sun."),
    ("the red planet", "Mars", "Mars is called the red planet."), ("the king of the animals", "the lion", "The lion is called the king of the animals."), ("the hottest season", "summer", "Summer is the hottest season."),
    ("the coldest season", "winter", "Winter is the coldest season."), ("the first month of the year", "January", "January is the first month of the year."), ("the last month of the year", "December", "December is the last month of the year."),
    ("the shortest month", "February", "February is the shortest month."), ("the first letter of the alphabet", "A", "A is the first letter of the alphabet."), ("the last letter of the alphabet", "Z", "Z is the last letter of the alphabet."),
    ("the organ that pumps blood", "the heart", "The heart pumps blood."), ("the gas that we need to breathe", "oxygen", "We need oxygen to breathe."), ("the chemical formula of water", "H2O", "The chemical formula of water is H2O."),
    ("the temperature at which water freezes", "0 degrees", "Water freezes at 0 degrees Celsius."), ("the temperature at which water boils", "100 degrees", "Water boils at 100 degrees Celsius."), ("the largest continent", "Asia", "Asia is the largest continent."),
    ("the smallest continent", "Australia", "Australia is the smallest continent."), ("the author of Romeo and Juliet", "Shakespeare", "Shakespeare wrote Romeo and Juliet."), ("the painter of the Mona Lisa", "Leonardo da Vinci", "Leonardo da Vinci painted the Mona Lisa."),
    ("the first man on the moon", "Neil Armstrong", "Neil Armstrong was the first man on the moon."), ("the hardest natural material", "diamond", "Diamond is the hardest natural material."), ("the largest desert in Africa", "the Sahara", "The Sahara is the largest desert in Africa."),
    ("the ship of the desert", "the camel", "The camel is called the ship of the desert."), ("the largest bird", "the ostrich", "The ostrich is the largest bird."), ("the colour you get from blue and yellow", "green", "Blue and yellow make green."),
    ("the colour you get from red and yellow", "orange", "Red and yellow make orange."), ("the colour you get from red and blue", "purple", "Red and blue make purple."), ("the direction where the sun rises", "the east", "The sun rises in the east."),
    ("the direction where the sun sets", "the west", "The sun sets in the west."), ("the planet with the big rings", "Saturn", "Saturn is the planet with the big rings."), ("the currency of Japan", "the yen", "The currency of Japan is the yen."),
    ("the currency of the United States", "the dollar", "The currency of the United States is the dollar."), ("the currency of France", "the euro", "The currency of France is the euro."), ("the metal that magnets attract", "iron", "Magnets attract iron."),
    ("the scientist who studied gravity under an apple tree", "Newton", "Newton studied gravity."), ("the meal eaten in the morning", "breakfast", "Breakfast is eaten in the morning."), ("the largest organ of the body", "the skin", "The skin is the largest organ of the body."),
    ("the part of a plant under the ground", "the root", "The root of a plant is under the ground."), ("the force that pulls things down", "gravity", "Gravity pulls things down."), ("the country with the Great Wall", "China", "The Great Wall is in China."),
    ("the city with the Eiffel Tower", "Paris", "The Eiffel Tower is in Paris."), ("the country with the pyramids", "Egypt", "The pyramids are in Egypt."),
]

# category: (pairs, answer sentence, ways to ask); the last three ways are asked in evaluation alone.
_CATEGORIES = {
    "capital": (_CAPITALS, "The capital of {k} is {v}.", [
        "What is the capital of {k}?", "What's the capital of {k}?", "Name the capital of {k}.", "Which city is the capital of {k}?", "Tell me the capital of {k}.", "{k}'s capital?", "Capital of {k}?", "The capital city of {k} is which one?",
        "Can you tell me the capital of {k}?", "What city is the capital of {k}?", "What is {k}'s capital city?", "Do you know the capital of {k}?", "I need the name of the capital of {k}.", "What is the name of the capital of {k}?", "Which capital does {k} have?",
        "Please name the capital city of {k}.", "Could you tell me which city is the capital of {k}?", "I forgot the capital of {k}. What is it?"]),
    "language": (_LANGUAGES, "People in {k} speak {v}.", [
        "What language is spoken in {k}?", "Which language do people speak in {k}?", "What do people speak in {k}?", "What is the language of {k}?", "Tell me the language of {k}.", "Language of {k}?", "In {k}, which language is spoken?", "Name the language spoken in {k}.",
        "Which language is used in {k}?", "Which language would I hear in {k}?", "What is the main language in {k}?", "Do you know which language they speak in {k}?", "What language do they speak in {k}?", "If I travel to {k}, which language is spoken there?", "What tongue is spoken in {k}?",
        "Could you tell me what language people in {k} speak?", "Please name the main language of {k}.", "Which language do they use in {k}?"]),
    "continent": (_CONTINENTS, "{k} is in {v}.", [
        "On which continent is {k}?", "Which continent is {k} in?", "What continent is {k} on?", "In which continent does {k} lie?", "{k} is on which continent?", "Name the continent of {k}.", "Tell me the continent of {k}.", "Where is {k}, on which continent?", "What continent does {k} belong to?",
        "To which continent does {k} belong?", "Continent of {k}?", "Which continent does {k} lie on?", "Do you know on which continent {k} is?", "{k} lies on what continent?", "Which part of the world is {k} in, as a continent?",
        "Could you tell me which continent {k} is on?", "Please name the continent where {k} is.", "On what continent does {k} lie?"]),
    "baby": (_BABIES, "A young {k} is called a {v}.", [
        "What is a young {k} called?", "What is a baby {k} called?", "What do you call a baby {k}?", "What do you call a young {k}?", "Name of a baby {k}?", "What is the word for a baby {k}?", "A baby {k} is called what?", "How do we call a young {k}?", "Tell me the name for a young {k}.", "What is the young of a {k} called?",
        "Which word means a young {k}?", "What are baby {k}s called?", "What is the baby of a {k}?", "Which name does a baby {k} have?", "What do people call the young of a {k}?", "Could you tell me what a baby {k} is called?", "What is the name of a young {k}?", "Please tell me the word for a young {k}."]),
    "sound": (_SOUNDS, "A {k} {v}.", [
        "What sound does a {k} make?", "What does a {k} do when it makes a noise?", "Which sound does a {k} make?", "What noise does a {k} make?", "How does a {k} sound?", "What does a {k} sound like?", "Tell me the sound of a {k}.", "The sound of a {k}?", "Which noise does a {k} make?", "What is the sound of a {k}?",
        "What kind of sound does a {k} make?", "How does a {k} call?", "What kind of noise does a {k} make?", "Name the sound a {k} makes.", "What is the noise of a {k}?", "Could you tell me what sound a {k} makes?", "Please name the noise a {k} makes.", "Do you know what sound a {k} makes?"]),
    "colour": (_COLORS, "The colour of {k} is {v}.", [
        "What colour is {k}?", "Which colour is {k}?", "What is the colour of {k}?", "What color is {k}?", "Tell me the colour of {k}.", "Colour of {k}?", "Name the colour of {k}.", "Which color does {k} have?", "What colour does {k} have?", "{k} is which colour?", "Do you know the colour of {k}?", "What is the color of {k}?",
        "Say the colour of {k}.", "What colour do you see when you look at {k}?", "In which colour would you paint {k}?", "Could you tell me what colour {k} is?", "Please name the color of {k}.", "Which colour has {k}?"]),
    "opposite": (_OPPOSITES, "The opposite of {k} is {v}.", [
        "What is the opposite of {k}?", "What's the opposite of {k}?", "Opposite of {k}?", "Name the opposite of {k}.", "Tell me the opposite of {k}.", "Which word is the opposite of {k}?", "What is the contrary of {k}?", "Give me the opposite of {k}.", "Give the opposite of the word {k}.", "What word means the opposite of {k}?",
        "{k} is the opposite of what?", "Can you tell me the opposite of {k}?", "What is the antonym of {k}?", "I need the opposite of {k}.", "The opposite of {k} is what?", "Could you tell me which word is the opposite of {k}?", "Please give me the opposite of {k}.", "Do you know the opposite of the word {k}?"]),
    "home": (_HOMES, "A {k} lives in a {v}.", [
        "Where does a {k} live?", "What is the home of a {k} called?", "In what does a {k} live?", "What does a {k} live in?", "Where do you find a {k} at home?", "Tell me where a {k} lives.", "What is a {k}'s home called?", "What kind of home does a {k} have?", "The home of a {k} is what?", "Name the home of a {k}.",
        "Which home does a {k} have?", "Home of a {k}?", "Where is a {k} at home?", "What do you call the home of a {k}?", "In which place does a {k} live?", "Could you tell me where a {k} lives?", "Please name the home of a {k}.", "Do you know what the home of a {k} is called?"]),
    "made": (_MADE, "{k} can be made from {v}.", [
        "What is {k} made from?", "What is {k} made of?", "From what do we make {k}?", "What do you need to make {k}?", "Which material is used for {k}?", "From what is {k} made?", "Tell me what {k} is made from.", "What do people use to make {k}?", "{k} is made from what?", "What do we make {k} from?", "Name what {k} is made of.",
        "What is used to make {k}?", "Of what is {k} made?", "Out of what is {k} made?", "What do people make {k} from?", "Could you tell me what {k} is made of?", "Please tell me from what {k} is made.", "Do you know what {k} is made from?"]),
    "legs": (_LEGS, "A {k} has {v} legs.", [
        "How many legs does a {k} have?", "What number of legs does a {k} have?", "Tell me how many legs a {k} has.", "Count the legs of a {k}.", "A {k} has how many legs?", "Number of legs of a {k}?", "On how many legs does a {k} walk?", "How many legs has a {k}?", "How many legs are there on a {k}?", "Say how many legs a {k} has.",
        "Legs of a {k}?", "Do you know how many legs a {k} has?", "How many legs do we count on a {k}?", "What is the number of legs of a {k}?", "How many legs would a {k} have?", "Could you tell me how many legs a {k} has?", "Please tell me the number of legs of a {k}.", "I wonder how many legs a {k} has."]),
    "works": (_WORKS, "A {k} works in {v}.", [
        "Where does a {k} work?", "In what place does a {k} work?", "Tell me where a {k} works.", "What is the place where a {k} works?", "Where would you find a {k} at work?", "A {k} works where?", "Name the place where a {k} works.", "Where is a {k} usually working?", "What place does a {k} work in?", "Work place of a {k}?", "Where can I meet a {k} at work?",
        "In which place does a {k} do the work?", "Where do people work as a {k}?", "Where does one work as a {k}?", "Do you know where a {k} works?", "Could you tell me where a {k} works?", "Please name the place a {k} works in.", "In which place does a {k} work?"]),
    "tool": (_TOOLS, "You use {v} to {k}.", [
        "What do you use to {k}?", "What do I need to {k}?", "Which tool do you use to {k}?", "What is used to {k}?", "With what do you {k}?", "What do people use to {k}?", "What helps you to {k}?", "What should I use to {k}?", "Name a thing that is used to {k}.", "Tell me what I need to {k}.", "Which thing do you need to {k}?", "I want to {k}. What do I need?",
        "What would you use to {k}?", "What do we need to {k}?", "To {k}, what do you use?", "Could you tell me what one uses to {k}?", "Please name what I need to {k}.", "I would like to {k}. What should I use?"]),
    "after": (_AFTER, "{v} comes after {k}.", [
        "What comes after {k}?", "What follows {k}?", "Which one comes after {k}?", "What is next after {k}?", "Tell me what comes after {k}.", "After {k} comes what?", "What comes right after {k}?", "{k} is followed by what?", "What comes next after {k}?", "Name what comes after {k}.", "After {k}, what is next?", "Which one follows {k}?",
        "Next after {k}?", "What do we have after {k}?", "What is it after {k}?", "Could you tell me what comes after {k}?", "Please name what follows {k}.", "Do you know what comes after {k}?"]),
    "kind": (_KINDS, "{k}: a kind of {v}.", [
        "What kind of thing is {k}?", "What is {k}: which kind of thing?", "{k} is a kind of what?", "Which kind of thing is {k}?", "What sort of thing is {k}?", "Tell me what kind of thing {k} is.", "What type of thing is {k}?", "To which kind of things does {k} belong?", "Which group does {k} belong to?", "Name the kind of thing that {k} is.",
        "In which group would you put {k}?", "What group does {k} belong to?", "What would you call {k}, as a kind of thing?", "{k}: what kind of thing is it?", "Which sort of thing is {k}?", "Could you tell me what kind of thing {k} is?", "Please say what sort of thing {k} is.", "Do you know which kind of thing {k} is?"]),
}
_NUMBER_ASKS = ["How many {k}?", "Tell me how many {k}.", "Do you know how many {k}?", "I forgot how many {k}.", "Quick question: how many {k}?", "How many {k}, please?", "Can you say how many {k}?", "Say how many {k}.", "Please answer: how many {k}?", "My question is how many {k}.",
                "I would like to know how many {k}.", "Exactly how many {k}?", "So how many {k}?", "Question: how many {k}?", "Answer this: how many {k}?", "Could you tell me how many {k}?", "I wonder how many {k}.", "Please tell me how many {k}."]
_CUSTOM_ASKS = ["What is {k}?", "What's {k}?", "Name {k}.", "Tell me {k}.", "Do you know {k}?", "Can you tell me {k}?", "{k}?", "Which one is {k}?", "What do we call {k}?", "I forgot {k}. What is it?", "Quick question: what is {k}?", "I want to know {k}.", "Say the name of {k}.",
                "What is the name of {k}?", "Give me {k}.", "Could you tell me {k}?", "Please name {k}.", "I wonder what {k} is."]
_HELD_WAYS = 3
_HERALDS = ["", "", "", "", "", "Hello! ", "Hi. ", "Quick question: ", "Question: ", "Please help me. ", "I have a question. ", "Tell me: ", "For my quiz: ", "Answer shortly. "]


def _sentence(text):
    return text[0].upper() + text[1:]


def _build():
    out = []
    for name, (pairs, answer, asks) in _CATEGORIES.items():
        for pair in pairs.split("|"):
            k, v = pair.split(":")
            said = answer.replace("{k}", k).replace("{v}", v)
            if name == "legs" and v == "no":
                said = "A %s has no legs." % k
            if name == "kind":
                article = "" if v in ("metal", "colour") or k in ("tennis", "football", "gold", "iron", "silver", "red") else "An " if k[0] in "aeiou" else "A "
                said = _sentence("%s%s is a%s %s." % (article, k, "n" if v[0] in "aeiou" else "", v))
                k = k if not article else article.lower() + k
            said = said.replace("called a owlet", "called an owlet").replace(" a anthill", " an anthill").replace("A ant ", "An ant ").replace("A owl ", "An owl ").replace("A elephant", "An elephant").replace("A octopus", "An octopus").replace("A actor", "An actor").replace("A astronaut", "An astronaut")
            out.append((name, [_sentence(a.replace("{k}", k)).replace(" a a", " an a").replace(" a o", " an o").replace(" a e", " an e").replace("A a", "An a").replace("A o", "An o") for a in asks], _sentence(said), v))
    for k, v in _NUMBERS:
        noun, rest = k.split(" ", 1)
        if rest.startswith("does "):
            said = "%s %s has %s %s." % (rest.split()[1].capitalize(), rest.split()[2], v, noun)
        else:
            said = "There are %s %s %s." % (v, noun, rest.replace("are there", "").replace("are ", "").strip())
        out.append(("number", [a.replace("{k}", k) for a in _NUMBER_ASKS], said, v))
    for k, v, said in _CUSTOM:
        out.append(("custom", [_sentence(a.replace("{k}", k)) for a in _CUSTOM_ASKS], said, v))
    return out


FACTS = _build()


def held_questions():
    """(question, key of the answer) for every fact, in ways of asking that training never sees."""
    return [(ask, v) for _, asks, _, v in FACTS for ask in asks[-_HELD_WAYS:]]


def trained_ways(fact):
    return fact[1][:-_HELD_WAYS]


def chat_turn(rng):
    fact = pick(rng, FACTS)
    question = pick(rng, trained_ways(fact))
    herald = pick(rng, _HERALDS)
    if rng.random() < 0.1:
        question = question.rstrip("?.").lower() if rng.random() < 0.5 else question.rstrip("?.")
    return herald + question, fact[2]


def plain(rng):
    lines = []
    for _ in range(1 + int(rng.random() * 5)):
        fact = pick(rng, FACTS)
        if rng.random() < 0.4:
            lines.append(fact[2])
        else:
            lines.append("Q: %s\nA: %s" % (pick(rng, trained_ways(fact)), fact[2]))
    return "\n".join(lines)
