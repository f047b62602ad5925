"""Short stories from a grammar with a world state, so that what happens later follows from what happened before.

A story is a cast, a plot and the plot's steps. Nearly every clause names somebody, something or some place of this
story's own, and those names are drawn from large sets: a span of thirteen words hardly ever occurs in two stories,
which is what lets `evaluate` ask that a sampled story repeat none. The training set is finite, and regenerated there.
"""

from . import heldout, spin
from .spin import LISTS, expand, pick, polish, sample

STORY_COUNT = 40_000

_WORDS = dict(
    trait="""curious|cheerful|quiet|clever|gentle|brave|shy|lively|patient|thoughtful|playful|dreamy|careful|friendly|honest|stubborn|kind|bold|merry|busy|
sleepy|funny|polite|hopeful|eager|calm|restless|tidy|generous|serious|sensible|loyal""",
    hobby="""{painting|drawing} {birds|ships|castles|horses|clouds|flowers}|collecting {shells|stamps|pebbles|feathers|buttons|leaves|old coins}|singing {old songs|in the bath|to the hens|in the garden}|
climbing {trees|hills|rocks|ladders}|reading {about stars|fairy tales|old maps|in bed|about whales|under the table}|watching {birds|the trains|ants|the clouds|the boats|the rain}|telling {jokes|riddles|ghost stories}|
building {towers|bridges|tiny houses|paper boats|dams}|jumping {in puddles|over fences|rope}|baking {bread|buns|little cakes|pies}|flying {kites|paper planes}|playing {the drum|the flute|chess|cards|hide and seek|marbles}|
planting {seeds|beans|tulips}|{skipping stones|catching leaves|solving puzzles|feeding the ducks|riding a bicycle|rolling down hills|whistling tunes|picking berries}|
sewing {tiny clothes|puppets|flags}|{looking at old pictures|writing letters|learning new words|counting stars|cleaning windows|juggling apples}""",
    when="""one {sunny|bright|cool|warm|grey|windy|misty|lovely|frosty|golden|quiet|cloudy} {morning|afternoon|day|evening}|on {a|the first|the last} {Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday} {in|of} {March|April|May|June|July|August|September|October}|
early one {spring|summer|autumn|winter} {morning|day}|{just|one day,|one morning,|shortly|an hour} {after|before} {lunch|breakfast|school|supper|sunrise|the market}""",
    soon="soon|a little later|after a while|before long|presently|at last|finally|an hour later|at noon|towards evening|{two|three|five|ten|twenty} minutes later|{two|three|four} hours later",
    says="""kindly|warmly|softly|firmly|quietly|calmly|gently|thoughtfully|cheerfully|politely|earnestly|brightly|hopefully|proudly|shyly|wisely|eagerly|gladly|
happily|slowly|tenderly|merrily|seriously|solemnly|patiently|honestly|slyly|lightly|sternly|briskly|sleepily|proudly""",
    moves="""slowly|quickly|quietly|happily|eagerly|carefully|bravely|gladly|calmly|cheerfully|hurriedly|silently|merrily|proudly|patiently|excitedly|politely|
gently|briskly|steadily|busily|softly|lightly|swiftly|keenly|nimbly|solemnly|hopefully""",
    said="said|said|answered|replied|whispered|added|murmured|called",
    cried="cried|shouted|called|exclaimed|gasped|burst out",
    glad="glad|happy|delighted|pleased|cheerful|joyful|proud|thankful|relieved|content",
    sad="sad|unhappy|worried|upset|gloomy|troubled|miserable|downhearted|lonely|tearful",
    good="fine|lovely|wonderful|splendid|beautiful|marvellous|perfect|charming|delightful",
    junk="""{a|a|one} [dull] {shoe|glove|button|spoon|bottle|basket|umbrella|bucket|hat|box|bell|cup|key|book|pencil|ribbon|coin|whistle|marble|jar|lamp|scarf|clock|
brush|fan|plate|belt|sock|kettle|nail|chain|candle|pipe|saddle|wheel}|a [lazy] {beetle|snail|frog|spider|worm|cricket|mouse|caterpillar|toad|lizard|moth|mole|hen|cat|goose|wasp}|
{some|three|seven|a few|five|many} [dull] {leaves|feathers|pebbles|pine cones|acorns|shells|twigs|newspapers|stones|cards|corks|sticks|rags}""",
    dull="old|dusty|forgotten|faded|muddy|wet|dirty|plain|lost|ugly|strange|tiny|big|small|grey|black|brown|cheap",
    lazy="sleepy|fat|striped|busy|surprised|green|tiny|lazy|cross|hungry|brown|spotted|grumpy|bored|shiny|thin",
    food="""{apple|plum|cherry|lemon|carrot|honey|pear|berry|nut|cheese|pumpkin|raisin|peach|ginger|oat|potato} {cake|pie|bread|buns|tart|cookies|muffins|pancakes|pudding}|{warm|sweet|fresh|hot} {milk|soup|cocoa|tea|porridge|corn|lemonade|chestnuts|waffles}""",
    color="red|blue|green|yellow|purple|orange|white|brown|silver|golden|pink|grey|striped|spotted|black|violet",
    look="old|shiny|tiny|pretty|fine|little|strange|lovely|handsome|heavy|small|big|bright|pale|funny|plain|dusty|new",
    virtue="""patience|honesty|courage|kindness|sharing|asking|laughing|trying again|listening|helping|waiting|friendship|good work|a warm word|a steady hand|an open heart|a clear head|
truth|loyalty|humour|trust|hope|care|a little time|forgiving""",
    vice="""gold|anger|pride|a quick lie|hurry|fame|silver|a loud voice|boasting|hiding|winning|sulking|envy|grumbling|worry|luck|crying|prizes|treasure|sweets|quarrelling|giving up|fear|jewels|silence|shouting|laziness|revenge""",
    trade="baker|miller|postman|farmer|shepherd|gardener|fisherman|tailor|carpenter|teacher|doctor|blacksmith|clockmaker|painter|sailor|cook",
    beast="crow|robin|cat|dog|goat|sparrow|hen|donkey|pigeon|swallow|squirrel|duck|bee|owl|blackbird|butterfly|magpie|lamb",
    doing="sat|rested|sang|slept|waited|watched|hopped about|dozed|danced|called|stood still|looked on",
    thing="fence|roof|wall|gate|bush|tree|stone|barrel|cart|chimney|lamp post|ladder|bench|window|hedge|wheelbarrow|bucket|tower",
    surface="crooked|mossy|old|green|tall|low|sunny|wet|painted|broken|grey|wooden|narrow|leaning|warm|dusty",
)
LISTS.update((name, spin.alternatives(words)) for name, words in _WORDS.items())
LISTS["first"] = heldout.GIRLS + heldout.BOYS
LISTS["girl"], LISTS["boy"] = heldout.GIRLS, heldout.BOYS
LISTS["surname"] = heldout.SURNAMES
LISTS["mapname"] = """Acorn Alder Amber Anchor Apple Arrow Aspen Autumn Badger Barley Beaver Beech Berry Birch Blossom Bluebell Bonnet Bramble Breeze
Bridle Bronze Button Candle Cedar Cherry Chestnut Clover Cobble Copper Coral Cotton Cowslip Cricket Crystal Daffodil Dandelion Dolphin Dove
Duckling Eagle Elder Ember Falcon Feather Fiddle Finch Foxglove Garnet Ginger Goose Hawthorn Hazelnut Heather Hedgehog Heron Honey Juniper Kettle
Kingfisher Lantern Lark Laurel Lavender Lemon Linden Magpie Maple Marigold Meadow Mint Mistletoe Moonlight Mulberry Mushroom Nettle Nightingale
Nutmeg Oak Orchard Osprey Otter Parsley Peach Pebble Pepper Pigeon Pine Plum Poplar Poppy Primrose Pumpkin Quartz Quill Rabbit Raven Ribbon
Robin Rocket Rosemary Saddle Saffron Sage Salmon Seagull Shell Silver Skylark Snail Snowdrop Sparrow Squirrel Starling Summer Sunflower
Swallow Sycamore Thimble Thistle Thunder Timber Trout Tulip Turtle Velvet Violet Walnut Wheel Whistle Willow Winter Wren Yarrow""".split()

_TOYS = "kite|ball|drum|boat|doll|robot|whistle|puppet|train|flute|wagon|teddy bear|bucket|lantern|scarf|hat|mitten|cup|bell|box|book|umbrella|basket|backpack|key|ring|necklace|button|marble|coin|notebook|pencil case|camera|watch|blanket|pillow|jacket|sock|ribbon|feather|medal|compass|puzzle|toy car|toy horse|paintbrush|purse|flag|telescope|trumpet|lunch box|bracelet|comb|mirror|badge|rope|spoon|map|violin|sled|clock|vase".split("|")

_BREAKABLE = """drum|boat|doll|robot|whistle|train|flute|wagon|lantern|cup|bell|box|umbrella|watch|camera|telescope|bracelet|comb|mirror|violin|
clock|vase|compass|toy car|toy horse|sled|puppet|kite|jug|teapot|lamp|plate|bowl""".replace("\n", "").split("|")

# What kind of place it is, and the spots there where something may lie.
_SPOT_ADJ = "{old|tall|long|mossy|broken|narrow|wide|empty|painted|crooked|dark|wooden|dusty|leaning|cracked|big|small|quiet}"
_PLACES = {
    "Park": "bench|fountain|swing|pond|rose bush|gate|statue|lamp", "Beach": "rock|boat|sandcastle|dune|hut|pier|barrel|net",
    "Farm": "barn|cart|hen house|well|stable|haystack|pig sty|tractor", "Forest": "fern|oak|stream|log|bush|branch|root|stump",
    "Garden": "bean row|shed|flower pot|rain barrel|fence|plum tree|bird bath|bench", "Market": "fruit stall|basket|wagon|clock|awning|step|barrow|crate",
    "Library": "table|shelf|globe|armchair|window seat|stair|ladder|desk", "Castle": "throne|chest|mirror|stair|statue|drawbridge|fireplace|well",
    "School": "desk|piano|coat rack|cupboard|map|window sill|bench|gate", "Meadow": "wall|daisy patch|willow|brook|gate|stone|hedge|beehive",
    "Harbour": "net|boat|barrel|crate|rope|ladder|anchor|cabin", "Station": "bench|luggage cart|clock|fountain|signal|newspaper stand|ticket box|bridge",
    "Mill": "wheel|sack|millstone|bridge|stair|cart|door|water trough", "Hill": "stone|pine|shepherd's hut|wall|bush|tower|path sign|log",
}
_TITLES = ["Grandma", "Grandpa", "Aunt", "Uncle", "Mr.", "Mrs.", "Captain", "Doctor", "Miss", "Cousin"]
_FEMALE = {"Grandma", "Aunt", "Mrs.", "Miss"}
_HOMES = ["Street", "Lane", "Bridge", "Hill", "Square", "Corner", "Valley", "Lake", "Row", "Green"]


def _pronouns(ctx, prefix, female):
    for word, value in zip(("he", "him", "his"), ("she", "her", "her") if female else ("he", "him", "his")):
        ctx[prefix + word] = value
        ctx[(prefix + word).capitalize()] = value.capitalize()


def _thing(rng, nouns):
    """(short name, full name): ("kite", "shiny green kite")"""
    noun = pick(rng, nouns)
    return noun, " ".join((pick(rng, LISTS["look"]), pick(rng, LISTS["color"]), noun))


def _cast(rng):
    ctx = {"rng": rng}
    used = []
    for key, prefix in (("H", ""), ("F", "f"), ("G", "g")):
        female = rng.random() < 0.5
        name = pick(rng, heldout.GIRLS if female else heldout.BOYS)
        while name in used:
            name = pick(rng, heldout.GIRLS if female else heldout.BOYS)
        used.append(name)
        ctx[key.lower()] = name
        ctx[key] = name + " " + pick(rng, heldout.SURNAMES)
        ctx[prefix + "kind"] = "girl" if female else "boy"
        ctx[prefix + "self"] = "herself" if female else "himself"
        _pronouns(ctx, prefix, female)
    title = pick(rng, _TITLES)
    female = title in _FEMALE or (title in ("Captain", "Doctor", "Cousin") and rng.random() < 0.5)
    first = pick(rng, heldout.GIRLS if female else heldout.BOYS)
    ctx["A"] = title + " " + (first if title in ("Aunt", "Uncle", "Grandma", "Grandpa", "Cousin") else pick(rng, heldout.SURNAMES))
    _pronouns(ctx, "a", female)
    ctx["o"], ctx["obj"] = _thing(rng, _TOYS)
    ctx["o2"], ctx["obj2"] = _thing(rng, _TOYS)
    kind = pick(rng, sorted(_PLACES))
    ctx["place"] = pick(rng, LISTS["mapname"]) + " " + kind
    ctx["home"] = pick(rng, LISTS["mapname"]) + " " + pick(rng, _HOMES)
    for i, spot in enumerate(sample(rng, _PLACES[kind].split("|"), 3)):
        ctx["spot%d" % (i + 1)] = expand("{under|behind|beside|near|next to} {a|the} " + _SPOT_ADJ + " " + spot, rng)
    ctx["p"] = pick(rng, "kitten|puppy|duckling|hedgehog|rabbit|owl|squirrel|lamb|goat|fox|sparrow|turtle|swan|pony|hare|pigeon".split("|"))
    ctx["pet"] = expand("{small|little|young|thin|fluffy|shy|tired|frightened|tiny|lost} {spotted|grey|brown|black|white|golden|striped|red} ", rng) + ctx["p"]
    ctx["hname"], ctx["fname"] = ctx["H"], ctx["F"]
    return ctx


# Sentences of scenery, used between steps.
_SCENE = [
    "{Near <place>|On the way|Above <home>|Close by|Behind <h>}, a [lazy] [beast] [doing] {on|under|beside|near} the [surface] [thing].",
    "The {wind|sun|rain|fog|light} {moved|lay|played} {softly|lightly|slowly} over <place>, and a [lazy] [beast] [doing] {by|on|near} a [surface] [thing].",
    "A [lazy] [beast] and a [lazy] [beast] [doing] {on|by|near} the [surface] [thing] and {watched|looked at|listened to} <H>.",
]
_INTRO = [
    "{Once upon a time|Once|Long ago|Some years ago}, a [trait] <kind> {named|called} <H> lived {near|at|by} <home> and {loved|liked|enjoyed} [hobby].",
    "<H> was a [trait] <kind> {from|who lived at|who lived near} <home>, and <he> {loved|liked} [hobby] {and|or} [hobby].",
    "{At|Near|Close to} <home>, there {lived|was} a [trait], [trait] <kind> {named|called} <H>.",
    "<H> lived {near|at} <home> with {Grandma [girl]|Grandpa [boy]|two {brothers|sisters|cats|dogs|goats}|{a [lazy] dog|a [lazy] cat} called [mapname]} and {spent|passed} {many|long} hours [hobby].",
    "This is {the story of|a story about} <H>, a [trait] and [trait] <kind> {from|of} <home>.",
]
_FRIEND = [
    "<F>, the [trait] and [trait] <fkind> from [mapname] {Street|Lane|House|Yard|Hall}, was <h>'s {best|oldest|closest|dearest} friend.",
    "<F>, the {best|oldest|closest|dearest} friend of <H>, was {a little|rather|very} [trait], [trait] and [trait].",
    "{Every|Each} {Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday}, <H> {met|visited} <F>, {a [trait] and [trait] <fkind>|who was [trait] and [trait]}.",
]
_HAPPY = [
    "<H> felt [glad] and {warm|calm|light|tired|hungry|strong}, and <F> {hummed|whistled|sang} [moves] all the way {home|to <home>}.",
    "That {evening|night}, <H> told {Aunt [girl]|Uncle [boy]|Grandma [girl]|Grandpa [boy]} about <F> and the {adventure|day} {at|near} <place>, [moves] and with {many|big|funny} gestures.",
    "{Later|Afterwards|To celebrate}, <A> {brought|gave|served} <H> and <F> [food] with [food].",
    "<F> and <H> {walked|skipped|ran|strolled} {home|back} {to|towards} <home> {hand in hand|side by side|under the first stars|in the evening light}, [moves] {singing|talking|laughing}.",
]
_CLOSE = [
    "\"[virtue] is {better|worth more|stronger|wiser} than [vice], <H>,\" said <A> [says].",
    "{From that day on|After that|Since then}, <H> and <F> {knew|agreed|believed} that [virtue] is {better|worth more|stronger} than [vice].",
    "And so <h> {learned|discovered|found out} from <F> that [virtue] {goes further|lasts longer|helps more|counts for more} than [vice].",
    "That night <H> {slept|dreamed} {deeply|well|soundly|peacefully|happily|sweetly} at <home>, with {the moon|a star|a soft rain|a [lazy] cat|a [lazy] owl} {outside the window|close by|over the roof}.",
    "{And whenever|Whenever|Each time} <H> {passed|saw|thought of} <place>, <he> {smiled|laughed} [says] and {thought of|waved to|told a story about} <F>.",
]


def _lost(e, c):
    c["topic"] = "a lost " + c["o"]
    yield e(["<H> {owned|had|treasured} a <obj> from <A> and {took|carried} it [moves] to <place>.",
             "<A> had {once given|given|sent} <H> a <obj>, which {went|came} along {everywhere|to <place>}."])
    yield e(["[when], <H> and <F> {played|ran about|met|walked} {in|near|at} <place>, and {when they left|at the end|afterwards}, the <obj> was {gone|missing}.",
             "[when], <h> {came home from|got back from|left} <place> [moves], but the <obj> was {gone|missing|nowhere to be seen}."])
    yield e(["\"{I have lost|I miss|I cannot find} my <obj>, <F>!\" [cried] <h>, [sad] and {pale|breathless|shaking}.",
             "<H> {emptied|searched} {every pocket|the bag|both pockets|the basket} [moves] and told <F> about the <obj>."])
    yield e(["\"{Do not cry|Cheer up|Never mind|Come along}, <h>, we will {search|look around|look through} <place>,\" [said] <F> [says].",
             "<F> {took|held} <h>'s hand [moves] and {went|walked|ran} back to <place> to {look for|find} the <obj>."])
    yield e(["<F> {looked|searched|peered} <spot1> and {found|saw|met} [junk], while <h> {looked|crawled about} <spot2> and {found|saw|met} [junk]."])
    yield e(["[soon], <F> {pointed|waved} [moves], for the <obj> {was lying|lay|was waiting} <spot3>.",
             "[soon], <H> {stopped|stood still} <spot3>, and {there|right there} the <obj> {was lying|lay} {beside|under|next to} [junk]."])
    yield e(["<H> {hugged|held|kissed} the <obj> and {thanked|danced around} <F> [says].",
             "\"{Thank you|Thanks|Bless you}, <F>, I will {tie|keep|guard} my <obj> {better|with a string|in my bag},\" [said] <h> [says]."])


_FEARS = [
    ("the dark", "saw {monsters|giants|dragons} in every shadow near <home>", "hung a [look] [color] {lantern|lamp} {over the bed|by the window} and called the shadows [mapname] and [mapname]", "slept without the lamp"),
    ("thunder", "hid {under a [surface] table|in a [dull] box|behind a [surface] door} near <A>", "counted [moves] with <him> between {flash and boom|lightning and thunder}", "watched a storm {over|above} <place>"),
    ("deep water", "stayed {on the sand|near the [surface] boats|behind a [surface] rock} with <A>", "taught <him> [moves] to {float like a leaf|kick like a frog|blow bubbles}", "swam across {[mapname] Lake|the whole lake|the deep pond}"),
    ("dogs", "{crossed the road|climbed on a [surface] wall|hid behind <A>}", "brought a [lazy] {old|little|gentle} dog named [mapname] and showed <h> how to {hold out a hand to|talk to} [mapname]", "scratched the dog {behind the ears|under the chin}"),
    ("high places", "stayed {on the ground|beside a [surface] wall|at the bottom} with <A>", "climbed {two|three|five} steps [moves] with <h> {every day|each morning} and said to look at {<place>|<home>}", "stood on top of the [surface] tower {near|above} <place>"),
    ("speaking aloud", "{trembled|hid} {behind|beside} <A>", "listened [moves] to <him> {every evening|each day} {near|in} <place>", "read a [good] poem aloud {at|near} <place>"),
]


def _fear(e, c):
    what, sign, cure, triumph = pick(c["rng"], _FEARS)
    c["topic"] = "being afraid of " + what
    yield e(["But when it came to %s, <H> was {terribly|very|rather|quite} {afraid|timid|scared} and {often|always|usually} %s." % (what, sign)])
    yield e(["\"<F> is {bold|brave}, and I am {a coward|too small|a mouse},\" <h> {told|whispered to} {a [look] [color] pillow|the [lazy] cat|a [dull] teddy bear}.",
             "<H> {never told|did not tell|hid it from} <A> or <F> about it and felt [sad]."])
    yield e(["[when], <F> {noticed|saw} it {at|near} <place> and asked [says], \"Are you {afraid|scared}, <h>?\""])
    yield e(["\"{I was afraid of|I feared} {spiders|bees|cellars|ghosts|wolves|cows|frogs|geese} {once|myself|for years}, <h>,\" [said] <F> [says]."])
    yield e(["So <F> %s." % cure])
    yield e(["<H> {trembled|shook|sighed} {at first|on the first day|for a while}, but <F> stayed [moves] {beside|close to|with} <h>, and {slowly|bit by bit|day by day} <he> grew {calm|braver|bolder}."])
    yield e(["[soon], <H> [moves] %s, and <F> {cheered|clapped|beamed}." % triumph])
    yield e(["\"I {did it|was brave|made it}, <F>!\" [cried] <h>, [glad] and {tired|laughing|out of breath}."])


def _share(e, c):
    c["topic"] = "learning to share"
    yield e(["[when], <H> and <F> {found|discovered|saw} a <obj> <spot1> {at|near} <place>.",
             "[when], <A> {gave|brought} <H> and <F> {one|a single} <obj> {at|near} <place>."])
    yield e(["\"The <obj> is mine, <f>!\" [cried] <H>. \"No, <h>, {I saw it first|it belongs to me|let go}!\" [cried] <F>."])
    yield e(["<H> and <F> {pulled|tugged} wildly at the <obj> until it {fell|landed} {in|into} a {deep|muddy|cold|wide|shallow} {puddle|ditch|pond|stream} {beside|near} [junk].",
             "<F> {walked away|went home} past [junk], and <H> sat <spot2> with the <obj>, [sad] and alone."])
    yield e(["<A> {came along|had seen it all|stopped by} and asked [says], \"<h>, is a <obj> worth more than <f>?\""])
    yield e(["<H> {blushed|sighed|looked down} and {offered|handed|gave} the <obj> [moves] to <F>."])
    yield e(["\"You {may|can} {have it first|go first|start}, <f>, and I {will play|play} after {lunch|supper|you|school},\" [said] <H> [says]."])
    yield e(["So <F> {had|used|kept} the <obj> {in the morning|on Mondays|until lunch}, and <H> {had it|got it} {in the afternoon|on Tuesdays|after lunch}.",
             "[soon], <H> and <F> were playing [moves] with the <obj> near [junk] {at|in} <place>."])


_CRAFTS = [("birdhouse", "wood and nails", "the roof fell off"), ("scarf", "wool", "a thread came loose"), ("bowl", "clay", "the rim cracked"), ("picture", "paper and paint", "a cat walked over it"),
           ("necklace", "string and beads", "the string broke"), ("lantern", "paper and sticks", "the paper tore"), ("boat", "bark and leaves", "the mast snapped"),
           ("puppet", "cloth and buttons", "an arm came off"), ("basket", "willow twigs", "the handle split"), ("whistle", "a branch of elder", "it made no sound"), ("kite", "silk and string", "the tail came off"), ("box", "thin boards", "the lid jammed")]


def _gift(e, c):
    thing, stuff, mishap = pick(c["rng"], _CRAFTS)
    c["thing"] = pick(c["rng"], LISTS["look"]) + " " + pick(c["rng"], LISTS["color"]) + " " + thing
    c["topic"] = "a birthday present"
    yield e(["<F>'s birthday was {coming soon|only three days away|on Sunday|the next day}, but <H> had {no money|only two coins|an empty purse|nothing but [junk]}.",
             "[when], <H> {remembered|heard} {near|at} <place> that <F>'s birthday was {very near|on Saturday|only two days away}."])
    yield e(["\"{Make|Build|You could make} {something|a gift} yourself, <h>,\" [said] <A> [says].",
             "<A> {smiled|nodded|thought} and told <h> [says] to make a present by hand."])
    yield e(["So <H> {gathered|found|borrowed} %s from {<A>|<place>|a [dull] cupboard} and {made|began} a <thing> [moves]." % stuff])
    yield e(["But [soon], just {beside|next to} [junk], %s, and <h> felt [sad] and [sad]." % mishap])
    yield e(["\"{Try|Begin} {again|once more}, <h>, slowly and without {hurry|fear|tears},\" [said] <A>, and {[moves]|this time} <he> {mended|repaired|finished} the <thing>."])
    yield e(["At the party {near|at} <place>, <G> {gave|brought} <F> a <obj>, and <h> hid the <thing> {behind|under} [junk]."])
    yield e(["But <F> {found|discovered|unwrapped} the <thing> and [cried], \"{Did you make this|Is this from you}, <h>?\""])
    yield e(["\"It is {finer|better} than the <obj> and all {other|the} gifts,\" [said] <F> [says] and hugged <H>.",
             "<F> {carried|showed} the <thing> [moves] to <G> and <A>, and <H> {blushed|beamed|glowed}."])


_TRAPS = [("stuck in a [surface] tree", "a [look] ladder"), ("trapped in a deep hole", "a [look] [color] rope"), ("caught in the thorns", "a [look] pair of gloves"), ("shivering on a [surface] rock in the stream", "a [look] plank"),
          ("tangled in a [dull] net", "a [look] knife"), ("locked in a [surface] shed", "a [look] [color] key"), ("stuck under a [surface] branch", "a [look] pole"), ("lost on a [surface] roof", "a [look] [color] blanket")]


def _rescue(e, c):
    where, tool = pick(c["rng"], _TRAPS)
    c["tool"] = polish("x " + expand(tool, c["rng"]))[2:]
    c["the tool"] = "the " + c["tool"].split(" ", 1)[1]
    c["topic"] = "a {0} in trouble".format(c["p"])
    yield e(["[when], <H> {walked|strolled|was walking} [moves] {to|past} <place> and heard a {faint|sad|thin|small|strange} {cry|sound|noise} <spot1>.",
             "[when], <F> and <H> were {talking|playing|resting} <spot1> {at|near} <place> when {something|somebody} cried [moves]."])
    yield e(["There they saw a <pet>, %s." % where if c["rng"].random() < 0.0 else "There, {near|not far from} [junk], was a <pet>, %s." % where])
    yield e(["\"{Hold on|Be brave|Wait there}, little <p>,\" [said] <H> [says], and <F> {stretched out both arms|reached out} <spot2>, but the <pet> was too far away."])
    yield e(["<F> {ran|hurried|raced} [moves] to <A> at <home> and {came back|returned} with <tool>."])
    yield e(["Then <H> and <F> [moves] {freed|saved|rescued} the <pet> with <the tool>.",
             "<h> {spoke|whispered} [says] to the <pet>, while <F> {worked|helped} with <the tool> until it was free."])
    yield e(["<H> {wrapped|warmed} the <pet> in a [look] [color] {scarf|jacket|towel|blanket}, and <F> {gave|offered} it {water|milk|bread|berries|hay}."])
    yield e(["{The next day|A week later|Every morning after that}, the <pet> {came|waited} [moves] {at|by} <h>'s [surface] {door|gate|window}.",
             "[soon], the <p> {ran|hopped|went} [moves] back to its mother <spot2>, and <F> {waved|smiled}."])


def _grow(e, c):
    plant, result = pick(c["rng"], [("sunflower", "flower as tall as the door"), ("pumpkin", "pumpkin as round as the moon"), ("bean", "vine with forty green beans"), ("apple", "thin tree with white blossoms"),
                                    ("carrot", "carrot as long as an arm"), ("tomato", "bush full of tomatoes"), ("rose", "rose as red as the evening sky"), ("strawberry", "bowl full of strawberries")])
    c["topic"] = "a " + plant + " seed"
    c["pot"] = expand("{beside|behind|near|next to} the [surface] [thing]", c["rng"])
    yield e(["[when], <A> {gave|handed|sent} <H> a {tiny|small|dry|brown} %s seed from <place>." % plant,
             "[when], <h> {bought|found} a {tiny|small|dry|brown} %s seed {at|near} <place>, {beside|under} [junk]." % plant])
    yield e(["\"{Plant it|Put it in the ground} and {be patient|wait}, <h>,\" [said] <A> [says]."])
    yield e(["So <H> {dug a hole|made a hole} <pot> with a [look] {spoon|shovel|stick}, and <F> {laid|put} the seed [moves] inside."])
    yield e(["{Five|Three|Six|Four|Eight|Nine} days {passed|went by} at <home>, and <H> {saw|found} only [junk] <pot>."])
    yield e(["\"{It is dead|It will never grow|I give up}, <f>,\" {sighed|grumbled|moaned} <h>. \"{Wait|Give it time|Be patient}, <h>,\" [said] <F> [says]."])
    yield e(["<H> {watered|guarded} the {place|ground|earth} <pot> [moves], and <F> {helped|laughed|listened} and {sang|talked|told stories} to the %s." % plant])
    yield e(["[soon], <h> saw a {tiny|pale|bright|thin} green {leaf|shoot|tip} <pot> and [moves] {called|fetched} <F>."])
    yield e(["By {August|autumn|the end of summer|September}, <h> had a [good] %s, and <A> {admired|praised} it [moves]." % result])
    yield e(["<H> gave <F> {a share|half of it|a part} and {kept|saved} {one|two|three} seeds in a [look] [color] {box|tin|jar}."] if plant != "rose" else ["<H> gave <F> a leaf of it and kept it in a [look] [color] {book|box}."])


def _bake(e, c):
    dish, missing = pick(c["rng"], [("apple pie", "sugar"), ("carrot cake", "flour"), ("honey cake", "honey"), ("cherry tart", "butter"), ("pumpkin soup", "salt"), ("milk pudding", "milk"), ("pear cake", "cinnamon"), ("onion soup", "pepper"), ("nut bread", "yeast")])
    c["topic"] = "making " + ("an " if dish[0] in "ao" else "a " if "soup" not in dish and "bread" not in dish else "") + dish
    c["n"] = pick(c["rng"], ["Mr. ", "Mrs. ", "Miss "]) + pick(c["rng"], heldout.SURNAMES)
    yield e(["[when], <H> and <F> {decided|wanted|planned} to surprise <A> with a [good] %s." % dish])
    yield e(["<H> {washed|fetched|found} a [look] [color] {bowl|pot|spoon}, and <F> {opened|searched} the [surface] cupboard [moves]."])
    yield e(["\"{There is|We have} no %s, <h>, only [junk],\" [said] <F> [says]." % missing])
    yield e(["So <H> {knocked|rang} [moves] at the [surface] [color] door of <n> {near|beside} <place>."])
    yield e(["\"{Take|Here is|You may have} {my|some} %s, <h>, but {bring|save} me a {taste|bite|bit},\" [said] <n> [says]." % missing])
    yield e(["<H> stirred [moves], <F> {tasted|counted|sang|read the recipe} [moves], and a [lazy] {cat|dog} [doing] {under|near} the [surface] table."])
    yield e(["[soon], <h>'s %s was {ready|done}, a little {crooked|brown|flat|dark} but [good], and <A> {ate|tasted} it [moves]." % dish])
    yield e(["<F> {carried|brought} {some|a share|a large part} of the %s to <n> {at|near} <place> in a [look] [color] {bowl|basket|box}." % dish])
    yield e(["\"{Nobody|No [trade]} in <home> {cooks|does it} like <h> and <f>,\" [said] <n> [says]."])


def _broken(e, c):
    c["o"], c["obj"] = _thing(c["rng"], _BREAKABLE)
    c["topic"] = "a broken " + c["o"]
    bad, good = sample(c["rng"], ["tape", "string", "wax", "a rubber band", "paper", "strong glue", "a tiny screw", "a piece of wire", "leather", "needle and thread", "two nails", "a silk ribbon"], 2)
    yield e(["[when], <H> {borrowed|was allowed to borrow} <F>'s <obj> {for a day|for an hour|until supper} {at|near} <place>."])
    yield e(["But <h> {tripped over|bumped into|slipped on} [junk] <spot1>, and the <obj> {broke|cracked|split}{| in two| in three pieces}.",
             "But <spot1>, the <obj> {fell|slipped} {out of|from} <h>'s hands {onto|beside} [junk] and {broke|cracked|split}."])
    yield e(["\"What will <F> say about the <o>?\" {thought|wondered|whispered} <H>, [sad] and {pale|red|trembling}."])
    yield e(["First <h> {tried|used} %s, but the <obj> {fell apart|came apart|broke} {again|once more} {near|beside} [junk]." % bad])
    yield e(["\"{Tell|Go and tell|First tell} <F> the truth, <h>,\" [said] <A> [says]."])
    yield e(["So <H> {went|walked|ran} [moves] to <F> {at|near} <home> and said, \"{I broke|I have broken} your <obj>, <f>.\""])
    yield e(["<F> was {silent|quiet|cross}, looked at the <obj> and {took|squeezed|held} <h>'s hand [moves]."])
    yield e(["\"<H>, {thank you for|I like} the truth,\" [said] <F> [says], \"and {now|together} we {can|will} {mend|fix} the <obj>.\""])
    yield e(["With <A>'s help and %s, <H> and <F> {repaired|mended} the <obj> [moves]." % good])


def _contest(e, c):
    sport, practise = pick(c["rng"], [("running race", "ran"), ("swimming race", "swam"), ("kite contest", "flew kites"), ("singing contest", "sang"), ("boat race", "rowed"), ("spelling contest", "spelled long words"), ("sack race", "hopped"), ("drawing contest", "drew"), ("jumping contest", "jumped"), ("cooking contest", "cooked"), ("chess contest", "played chess")])
    c["topic"] = "a " + sport
    yield e(["{In|At the end of} {April|May|June|July|spring|summer}, <H> {heard|read} about a %s {at|near} <place>, with a <obj> as the prize." % sport,
             "[when], <F> told <H> about a %s {at|near} <place>, where the winner gets a <obj>." % sport])
    yield e(["So <h> [moves] %s near [junk] {every day|each morning}, while <F> {counted|watched|cheered} [moves]." % practise])
    yield e(["\"You {will never|cannot} {beat me|win}, <h>,\" {said|boasted|laughed} <G>, the {proud|best|famous} <gkind> {from|of} <home>."])
    yield e(["On the {great|big} day, <A> and a [trait] [trade] from [mapname] Hill {sat|stood} <spot1>."])
    if c["rng"].random() < 0.5:
        yield e(["{Halfway|In the middle|Right at the start}, <G> {stumbled over|slipped on|fell over} [junk] <spot2>, and {only|just} <H> {stopped|turned back}."])
        yield e(["\"{Take my hand|Lean on me|Get up}, <g>,\" [said] <H> [says] and {lost|missed|gave up} the <obj>."])
        yield e(["\"{Forgive|Excuse} my {boasting|pride}, <h>,\" [said] <G> [says], and <A> {clapped|cheered} for <H>."])
    else:
        yield e(["<H> {looked at|thought of|winked at} <F>, {saw|forgot} the <obj> and {began|did <his> best} [moves]."])
        yield e(["[soon], <A> {called|read out} the {winner|name}: <H>! And <F> {jumped|danced} [moves] {over|around} [junk]."])
        yield e(["<G> {came|walked} [moves] to <h>, {shook <his> hand|bowed} and {handed|gave} <him> the <obj>."])


def _truth(e, c):
    c["o"], c["obj"] = _thing(c["rng"], _BREAKABLE)
    c["topic"] = "telling the truth"
    yield e(["[when], <H> was {playing ball|dancing|running|jumping} [moves] in <A>'s [surface] {house|kitchen|hall} {at|near} <home>."])
    yield e(["<h> {bumped into|knocked over|hit} [junk] and then <A>'s <obj>, and {it|the <o>} broke into {many|three|five|ten} pieces."])
    yield e(["{Quickly|Silently|In fear}, <H> hid the <obj> {under|behind|beneath} a [surface] {bed|curtain|sofa|chest} with [junk]."])
    yield e(["\"Where is my <obj>, <h>?\" asked <A> [says] {at supper|that evening|in the evening}, but <H> {said nothing|looked away|shook <his> head}."])
    yield e(["{At night|Later|The next day}, <H> told <F> about the <obj>, [sad] and {tired|pale|ashamed}."])
    yield e(["\"A lie {grows heavier|gets heavier} {every|each} {day|hour|night}, <h>, so {tell|go to} <A>,\" [said] <F> [says]."])
    yield e(["So <H> {went|came} [moves] to <A> and said, \"{It was me|I did it}, I broke {your|the} <obj>.\""])
    yield e(["<A> {looked at|watched} <h> [moves] and {hugged|forgave|thanked} <him> {beside|near} the [surface] [thing]."])
    yield e(["Together, <A> and <H> {glued|mended} the <obj> [moves], and <F> {held|handed them} {the glue|the pieces|a [look] lamp}."])


def _newkid(e, c):
    c["topic"] = "a new friend"
    game = pick(c["rng"], ["hide and seek", "marbles", "tag", "catch", "cards", "jump rope", "chess", "football", "hopscotch"])
    yield e(["[when], a [trait] <fkind> named <F> {came|moved} from {[mapname] Island|[mapname] Mountain|[mapname] Valley|the far town of [mapname]} to <home>."])
    yield e(["<F> sat [moves] <spot1> {at|near} <place> with a <obj>, [sad] and alone."])
    yield e(["\"Nobody {knows|understands} <F>,\" {said|muttered} <G>, but <H> {thought|felt} {otherwise|differently} and {walked|went} [moves] over."])
    yield e(["\"{Hello|Hi|Good day}, I am <H>, and I {like|love} [hobby],\"" + " [said] <h> [says]."])
    yield e(["\"I am <F>, and this <obj> {comes from|is from} {Aunt [girl]|Uncle [boy]|my {old|far} home},\" {whispered|said} <f> [says]."])
    yield e(["[soon], <H> and <F> were playing %s [moves] <spot2>, {beside|near} [junk]." % game])
    yield e(["<G> {came|walked} [moves] to <F> and <h> and asked to {join in|play %s too}." % game])
    yield e(["{The next day|On the way home|That evening}, <F> {gave|lent} <H> the <obj>, [moves] {smiling|humming|whistling}."])


def _lostway(e, c):
    sign = pick(c["rng"], ["the sound of [mapname] Stream", "a thin line of smoke over <home>", "a [surface] wall with the name [mapname]", "a row of [color] stones", "the tracks of a [surface] cart", "the bell of [mapname] Church", "a [lazy] dog from <home>", "a [surface] sign to <home>"])
    c["topic"] = "getting lost"
    yield e(["[when], <H> and <F> {went|walked|set out} [moves] into [mapname] {Forest|Wood|Valley} to {look for|pick|gather} {mushrooms|berries|nuts|flowers|pine cones|feathers}."])
    yield e(["\"{Stay|Keep} on the path, <h>,\" {said|warned} <A> [says], but [junk] and then [junk] {led|drew} <F> {away|further}."])
    yield e(["[soon], <h> {lost the path|saw no path|found only trees}, and a [lazy] {owl|crow|bat} {called|cried} {from|behind} a [surface] {tree|oak|branch|log}."])
    yield e(["\"<h>, {are we lost|where is <home>|is it far to <home>}?\" {asked|whispered} <F> [says], {holding|clutching} a <obj>."])
    yield e(["<H> {took|held} <F>'s hand [moves] and {listened|looked around} until <f> {noticed|found} %s." % sign])
    yield e(["\"<f>, {that is|there is|I see} our way to <home>,\" [said] <H> [says]."])
    yield e(["{Slowly|Hand in hand|Step by step}, <F> and <h> {walked|went on} past [junk] and over a [surface] {bridge|log|wall|hill}."])
    yield e(["At <home>, <A> {ran|came} [moves] to meet them with a [look] [color] {lantern|blanket|umbrella}."])
    yield e(["\"You {kept calm|were wise|were brave}, <h>,\" [said] <A> [says], and {gave|brought} <F> [food]."])


def _rain(e, c):
    inside, what = pick(c["rng"], [("tent", "blankets and chairs"), ("ship", "a table and two sheets"), ("theatre", "boxes and socks"), ("castle", "boxes and pillows"), ("shop", "shelves and buttons"), ("train", "all the chairs")])
    c["topic"] = "a rainy day"
    yield e(["<H> and <F> had packed [food] for a picnic {at|near} <place>."])
    yield e(["But [when], {dark clouds came|it rained|the rain poured down} over <home>, and a [lazy] [beast] {hid|sat} {under|behind} the [surface] [thing]."])
    yield e(["\"{The day is ruined|It is not fair|I hate rain}, <f>,\" {grumbled|sighed|moaned} <H>, [sad] {beside|near} the [surface] window."])
    yield e(["<F> {thought|looked around|listened} and said [says], \"{Let us|We can|We could} take <A>'s [look] [color] {rug|coat|carpet|curtain} and build a %s, <h>!\"" % inside])
    yield e(["<H> [moves] {carried|brought|dragged} %s, and <F> [moves] {hung up|added} a <obj>." % what])
    yield e(["In the %s, <h> and <F> {ate|shared} [food] and told {tales|jokes|stories} about a [lazy] [beast] and [junk]." % inside])
    yield e(["Even <A> {came|crawled} [moves] into the %s with [food] and a <obj2>." % inside])
    yield e(["When the sun came out over <place>, <H> and <F> {stayed|played on} [moves] in the %s." % inside,
             "\"I hope it rains {tomorrow|on Sunday|next week} at <home>, <f>,\" [said] <H> [says]."])


def _treasure(e, c):
    c["topic"] = "a treasure map"
    yield e(["[when], <H> {found|discovered} a [dull] map {inside|under|behind} [junk] {at|near} <home>."])
    yield e(["It showed <place> with a [color] {cross|star|circle}, so <h> {ran|hurried} [moves] to <F>."])
    yield e(["\"{Let us|We must} {search|go to} <place>, <f>,\" {whispered|said} <H> [says]."])
    yield e(["First they {looked|dug} <spot1> and found [junk] and <A>'s {note|paper|card} with the word [mapname]."])
    yield e(["<F> {read|turned|studied} it [moves] and {led|took} <h> <spot2>, where they {met|found} [junk]."])
    yield e(["{At last|[soon]}, <H> {dug|reached} <spot3> with a [look] {spoon|stick|shovel} and {hit|felt} a [dull] [color] {box|chest|trunk}."])
    yield e(["Inside, <F> found no gold but a <obj>, a <obj2> and a letter from <A>."])
    yield e(["\"{I hid|I buried} the <obj> as a child, <h>,\" [said] <A> [says] {that evening|at supper|with a smile}."])
    yield e(["<H> {kept|took} the <o>, and <F> {kept|got|took} the <obj2> {home|} [moves]."])


_FABLES = [("lion", "mouse", "strength", "was caught in a net", "gnawed through the ropes"), ("peacock", "sparrow", "feathers", "did not see the fox", "gave a loud warning"),
           ("stag", "mole", "antlers", "got stuck in the branches", "dug the roots loose"), ("horse", "bee", "speed", "was lost in the fog", "led the way home"),
           ("bear", "hedgehog", "paws", "had a thorn in one paw", "pulled the thorn out"), ("cat", "beetle", "claws", "fell into a barrel", "pushed a stick over the edge"),
           ("swan", "frog", "long neck", "was tangled in the weeds", "untied the weeds"), ("wolf", "squirrel", "loud voice", "was trapped in a pit", "dropped a long vine"),
           ("eagle", "snail", "sharp eyes", "had a broken wing", "brought sweet leaves every day"), ("camel", "lizard", "long legs", "could not find water", "found a hidden well")]


def _fable(e, c):
    big, small, boast, trouble, save = pick(c["rng"], _FABLES)
    c["topic"] = "a %s and a %s" % (big, small)
    c["B"], c["S"] = c["h"] + " the " + big.capitalize(), c["f"] + " the " + small.capitalize()
    yield e(["{Once upon a time|Long ago|Once}, a [trait] {young|old|} %s {named|called} <B> lived {at|near} <place> and boasted [moves] about <his> %s." % (big, boast)])
    yield e(["{Nearby|Not far away|Close by}, <spot1>, lived <S>, {a [trait] %s|who {loved|liked} [hobby]}." % small])
    yield e(["[when], <B> met <S> {beside|near|next to} [junk] {at|near} <place>."])
    yield e(["\"{Out of my way|You are tiny|I hardly see you}, <f>,\" {said|laughed|growled} <B> [says]."])
    yield e(["\"{Small can be useful|One day you may need me|I am good for something}, <h>,\" {said|answered|replied} <S> [says]."])
    yield e(["[soon], <B> %s <spot2>, and {no|not one} [trait] {animal|neighbour|creature} from <home> {dared to come|came}." % trouble])
    yield e(["Only <S> {came|hurried} [moves] past [junk] and %s." % save])
    yield e(["<B> {bowed to|thanked} <S> [says] and {said|whispered}, \"{I was wrong|Forgive me|I was foolish}, {dear|brave|little|clever} <f>.\""])
    yield e(["{From then on|After that|Since then}, <B> and <S> {shared|ate} [food] [moves] <spot1>."])


def _night(e, c):
    noise, cause = pick(c["rng"], [("a slow tapping", "a branch at the [surface] window"), ("a soft scratching", "a [lazy] hedgehog at the [surface] door"), ("a low moan", "the wind in a [dull] {pipe|bottle|chimney}"), ("a patter of feet", "a [lazy] cat with a [color] ball of wool"),
                                   ("a dripping sound", "a [dull] tap over a [look] bucket"), ("a strange rattling", "a [lazy] mouse in a [look] nut jar"), ("a deep growl", "<A>, snoring in a [surface] armchair")])
    c["cause"] = expand(cause, c["rng"], c)
    c["topic"] = "a noise in the night"
    yield e(["[when], <F> {came to stay with|visited} <H> {at|near} <home> and brought a <obj>."])
    yield e(["That night, after [food] and a story about [junk], <H> heard %s and {sat up|woke} [moves]." % noise])
    yield e(["\"<H>, {is it a ghost|is it a thief|what is that}?\" {whispered|breathed} <F> and {held|hugged} the <obj> [moves]."])
    yield e(["\"{Come|Get up}, <f>, let us look,\" {whispered|said} <H> [says] and {lit|took} a [look] [color] {lamp|lantern|candle}."])
    yield e(["{Slowly|On tiptoe|Barefoot}, <F> and <h> {crept|went} past [junk] and {down|along} the [surface] {stairs|hall|corridor}."])
    yield e(["<H> {lifted|raised} the light [moves], and <F> saw only <cause>!"])
    yield e(["\"<F>, {our ghost|our monster|our thief} is {tired|harmless|very small},\" {laughed|giggled|said} <h> [says]." if "growl" not in noise else "\"<F>, our {ghost|monster} is only <A>,\" {laughed|giggled|said} <h> [says]."])
    yield e(["<F> and <H> {ate|shared} [food] [moves] and {slept|dreamed} until {nine|ten|eight|the sun rose|<A> {called|sang}}."])


def _helping(e, c):
    load = pick(c["rng"], ["basket of potatoes", "bag of coal", "sack of apples", "bundle of firewood", "bucket of water", "pile of books", "box of jars", "crate of cabbages"])
    c["old"] = pick(c["rng"], ["old Mr. ", "old Mrs. "]) + pick(c["rng"], heldout.SURNAMES)
    c["topic"] = "helping a neighbour"
    yield e(["[when], <H> was {running|walking|skipping} [moves] to <place> to meet <F> and see a <obj2>."])
    yield e(["{Near|Beside|Behind} a [surface] [thing], <h> {saw|met} <old> with a [dull] %s." % load])
    yield e(["\"{May I|Can I|Shall I} {help|carry that}, please?\" asked <H> [says].",
             "\"{That looks heavy|Let me help|I will carry it},\" said <H> [says] to <old>."])
    yield e(["{Step by step|Slowly|Together}, <H> and <old> {carried|took} the %s past [junk] to <home>." % load])
    yield e(["On the way, <old> told <h> [says] about {a|the} [trait] {king|sailor|queen|giant|thief} {and|with} [junk]."])
    yield e(["\"{Take|Please take|Do take} this <obj>, <h>,\" {said|whispered} <old> [says]."])
    yield e(["<F> was waiting {crossly|alone|with a long face} <spot1> {at|near} <place>, until <H> showed <fhim> the <obj>."])
    yield e(["\"{Tomorrow|Next time}, <h>, we will both help <old>,\" [said] <F> [says]."])


def _saving(e, c):
    c["topic"] = "saving money for a " + c["o"]
    yield e(["In a [surface] {shop|window|shop window} {near|at} <place>, <H> saw a <obj> for {ten|twelve|fifteen|twenty} coins."])
    yield e(["So <h> {swept|cleaned} the [surface] {yard|steps|street} for <A>, {fed|brushed|walked} a [lazy] {horse|dog|goat|donkey} and {sold|picked} {apples|berries|flowers|nuts} [moves]."])
    yield e(["[when], <H> {took|counted} the coins from a [look] [color] {box|jar|tin} and {ran|set off} [moves] to <place>."])
    yield e(["On the way, <h> met <F>, who sat <spot1> and looked [sad]."])
    yield e(["\"<h>, my {brother [boy]|sister [girl]|uncle [boy]|aunt [girl]} is {ill|sick}, and we cannot pay Doctor [surname],\" {said|whispered} <F>."])
    yield e(["<H> {forgot|thought of} the <obj> and {gave|handed} <F> the coins [moves]."])
    yield e(["{Seven|Ten|Twelve|Five} days later, <F> and <A> {came|knocked} at <home> with [food] and a [look] [color] {parcel|box|bag}."])
    yield e(["\"{All is well|Everyone is well}, <h>, and {this is|here is} your <obj>!\" [cried] <F>."])


_SKILLS = [("ride a bicycle", "look ahead", "rode"), ("whistle", "blow gently", "whistled"), ("swim", "kick with your legs", "swam"), ("skate", "bend your knees", "skated"), ("play the flute", "breathe slowly", "played"),
           ("juggle", "watch the highest ball", "juggled"), ("sing", "stand up straight", "sang"), ("row", "pull with your back", "rowed"), ("dance", "count to four", "danced"), ("ski", "lean forward", "skied")]


def _skill(e, c):
    skill, tip, did = pick(c["rng"], _SKILLS)
    c["topic"] = "learning to " + skill
    yield e(["{Everyone|Everybody} {at|near} <home> could %s, even <F>, but not <H>." % skill,
             "<H> {wanted|longed} to %s like <F> {near|at} <place>." % skill])
    yield e(["[when], <h> {practised|tried} [moves] <spot1> {at|near} <place>, but only {frightened|surprised|woke} a [lazy] [beast] {near|on} the [surface] [thing]."])
    yield e(["\"I {will never|cannot} %s, <f>,\" {sighed|cried|muttered} <H> and {kicked|threw away} [junk]." % skill])
    yield e(["\"I {failed|fell|cried} {ten|twenty|fifty|a hundred} times {at|near} <home>, <h>,\" [said] <A> [says]."])
    yield e(["\"{Just|Only|Always} %s, <h>, and try {every|each} {day|morning|evening} with <F>,\" {said|added} <A> [says]." % tip])
    yield e(["So <H> {practised|tried} [moves] {beside|near} [junk], and <F> {cheered|helped|kept count} [moves]."])
    yield e(["[soon], <h> %s [moves] {all the way|} {past|around} [junk] and a [surface] [thing]." % did])
    yield e(["\"I can %s, <F>!\" [cried] <h>, and <A> {clapped|cheered|nodded} [moves]." % skill])
    yield e(["{The week after|The next day}, <G> {came|walked} [moves] to <H> and wanted to learn to %s {too|as well}." % skill])


def _build(e, c):
    thing, ruin, better = pick(c["rng"], [("sandcastle", "a wave washed it away", "further up the beach"), ("tree house", "the wind blew the roof off", "with thicker ropes"), ("snowman", "the sun melted its head", "in the cool shade"),
                                          ("raft", "it came apart in the pond", "with tighter knots"), ("dam", "the stream broke through", "with clay between the stones"), ("tower", "a dog ran into it", "with a wide base"),
                                          ("hut", "the rain came through", "with more leaves"), ("bridge", "a plank cracked", "with two strong logs")])
    c["topic"] = "building a " + thing
    c["thing"] = pick(c["rng"], LISTS["look"]) + " " + thing
    yield e(["[when], <H> and <F> {decided|made a plan|agreed} [moves] to build a <thing> near [junk] {at|near} <place>."])
    yield e(["<H> {carried|measured|fetched} everything [moves], and <F> {sang|dug|drew plans} [moves] {beside|behind} a <obj>."])
    yield e(["[soon], the <thing> {stood|was ready} <spot1>, but {suddenly|then} %s." % ruin])
    yield e(["\"<F>, {that was|it is} your fault!\" [cried] <H>, and <F> {turned|walked} away, [sad] and silent."])
    yield e(["<A> {came|stopped} by with [food], looked at [junk] and said [says], \"{Try again|Learn from it|Begin again}, <h>.\""])
    yield e(["\"{Forgive me|I am sorry}, <F>,\" [said] <H> [says]. \"Let us {build|try} again %s.\"" % better])
    yield e(["This time <H> and <F> {worked|built|planned} [moves] and [moves], with {help from <A>|a <obj> on top|[food] for lunch}."])
    yield e(["By {sunset|evening|supper}, the {new|second} <thing> {stood|was finished} {at|near} <place>, and <G> {came|stopped} to {see|admire} it [moves]."])


def _wind(e, c):
    c["o"] = pick(c["rng"], ["hat", "kite", "balloon", "scarf", "letter", "umbrella", "flag", "paper bird", "ribbon", "shawl"])
    c["obj"] = pick(c["rng"], LISTS["look"]) + " " + pick(c["rng"], LISTS["color"]) + " " + c["o"]
    c["topic"] = "a " + c["o"] + " in the wind"
    yield e(["[when], <H> {walked|stood} [moves] {near|at} <place> with a <obj> from <A>."])
    yield e(["A {wild|strong|sudden|cold} {gust|wind} {tore|snatched|pulled} the <obj> {away from|out of the hand of} <h> and {blew|carried} it {over|past} [junk]."])
    yield e(["\"{Stop|Come back|Wait for me}, my <o>!\" [cried] <H> and ran [moves] {towards|along} <home>."])
    yield e(["<F> {joined|followed} [moves], then a [trait] [trade] with [junk], and {at last|finally} <A>."])
    yield e(["The <obj> {danced|sailed|flew} {over|past|around} a [surface] [thing] near <home> and {landed|came to rest} on a {high|tall} {roof|tree|tower|chimney|post} {near|at} <place>."])
    yield e(["\"<h>, {everyone|each of us} must help {now|today},\" [said] <F> [says]."])
    yield e(["So <A> {held|brought} a [look] ladder, <F> {pointed|called} [moves], and <H> {reached|stretched} for the <obj>."])
    yield e(["{Got it|There}! <h> {held|had} the <obj> again, a little {wet|torn|dirty|crumpled}, and <F> {cheered|clapped} [moves]."])
    yield e(["\"The wind {took|stole} a <o>, <f>, and {brought|gave} me {many|so many|new} friends,\" [said] <H> [says]."])


def _letter(e, c):
    c["topic"] = "a lost letter"
    yield e(["[when], <H> {found|saw} a letter for <A> <spot1> {at|near} <place>."])
    yield e(["\"{It must have fallen|Somebody dropped it|The postman lost it}, <f>,\" [said] <H> [says], {showing|giving} <F> the [dull] [color] envelope."])
    yield e(["<F> and <h> {walked|went|set out} [moves] to <home>, past [junk] and a [surface] [thing]."])
    yield e(["A [trait] [trade] {told|showed} <H> [moves] that <A> had {moved|gone} to {[mapname] Street|[mapname] Hill|[mapname] Lane}."])
    yield e(["There, <A> {sat|was sitting} {beside|near} a [surface] [thing] with a [lazy] {cat|dog}, looking [sad]."])
    yield e(["\"Dear <A>, {is this letter|could this be} for you?\" asked <H>, {holding|lifting} the envelope [moves].", "<H> {gave|handed} the letter [moves] to <A>, and <F> {waited|listened} [moves]."])
    yield e(["<A> {opened|read} it [moves] and {laughed|wept for joy|smiled}: \"<H>, my {brother [boy]|sister [girl]|uncle [boy]|aunt [girl]} is coming home with a <obj>!\""])
    yield e(["{On Sunday|The next week|Soon}, <A> {invited|asked} <H>, <F> and {old|dear} [first] to [food] {at|near} <place>."])


_PLOTS = [_lost, _fear, _share, _gift, _rescue, _grow, _bake, _broken, _contest, _truth, _newkid, _lostway, _rain, _treasure, _fable, _night,
          _helping, _saving, _skill, _build, _wind, _letter]


def story(seed):
    """The story of that number: (what it is about, the hero's name, its text)."""
    rng = spin.make_rng("story", seed)
    c = _cast(rng)

    def e(options):
        return expand(pick(rng, options), rng, c)

    plot = pick(rng, _PLOTS)
    parts = []
    if plot is not _fable:
        parts.append(e(_INTRO))
        if plot is not _newkid:
            parts.append(e(_FRIEND))
    body = list(plot(e, c))
    if plot is not _fable and rng.random() < 0.5:
        body.insert(1 + int(rng.random() * 3), e(_SCENE))
    parts += body
    if plot is _fable:
        parts.append(e(["So [virtue] is {better|worth more|stronger} than [vice], and <B> {told|taught} that [moves] to {every|each} [trait] {animal|child|cub} {near|at} <home>."]))
    else:
        if rng.random() < 0.6:
            parts.append(e(_HAPPY))
        parts.append(e(_CLOSE))
    parts = [part[0].upper() + part[1:] for part in parts]
    cut1 = len(parts) // 3 + int(rng.random() * 2)
    cut2 = len(parts) - 2 - int(rng.random() * 2)
    paragraphs = [parts[:cut1], parts[cut1:cut2], parts[cut2:]] if rng.random() < 0.6 else [parts]
    return polish("x " + c["topic"])[2:], c["hname"], "\n\n".join(polish(" ".join(p)) for p in paragraphs)
