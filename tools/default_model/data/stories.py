"""Short stories from a grammar with a world state, so that what happens later follows from what happened before.

A story has a hero, one friend of the other sex and at most one grown-up without a name, so that every "he" and "she" is
plain; its sentences are short. Every clause draws its words from many alternatives: a span of thirteen words hardly ever
occurs in two stories, which is what lets `evaluate` ask that a sampled story repeat none. The training set is finite,
and regenerated there.
"""

import functools
import re

from . import heldout, spin
from .spin import LISTS, expand, pick, polish, sample

STORY_COUNT = 40_000

_WORDS = dict(
    trait="""curious|cheerful|quiet|clever|gentle|brave|shy|lively|patient|thoughtful|playful|dreamy|careful|friendly|honest|stubborn|kind|bold|merry|busy|funny
|polite|hopeful|eager|calm|restless|tidy|generous|serious|sensible|loyal|cautious|daring|gifted|graceful|grumpy|helpful|humble|inventive|jolly|joyful
|modest|nimble|noisy|peaceful|practical|proud|quick|sleepy|smart|strong|tender|trusty|warm|wise|witty|gallant|adventurous|bossy|bright|charming|chatty
|cool|crafty|creative|earnest|faithful|fearless|fair|forgetful|frank|gracious|gloomy|hasty|jumpy|kindly|mild|musical|neat|nosy|pensive|pleasant|plucky
|rough|sharp|silent|simple|sincere|slow|sociable|solemn|spirited|steady|sunny|timid|tough|trusting""",
    hobby="""{painting|drawing} {birds|ships|castles|horses|clouds|flowers|maps}|collecting {shells|stamps|pebbles|feathers|buttons|leaves|coins|postcards}|singing {old songs|in the bath|in the garden|to the hens}|
climbing {trees|hills|rocks|ladders}|reading {about stars|fairy tales|old maps|in bed|about whales|about ships}|watching {birds|the trains|ants|the clouds|the boats|the rain}|telling {jokes|riddles|ghost stories|tall tales}|
building {towers|bridges|tiny houses|paper boats|dams|model ships}|baking {bread|buns|little cakes|pies}|flying {kites|paper planes}|playing {the drum|the flute|chess|cards|hide and seek|marbles|the piano}|
planting {seeds|beans|tulips|herbs}|skipping stones|solving puzzles|feeding the ducks|riding a bicycle|picking berries|sewing {tiny clothes|puppets|flags}|looking at {old pictures|the stars|beetles}|
writing {letters|poems|lists}|learning new words|counting {stars|trains|boats}|juggling {apples|balls}|{jumping|splashing} in puddles|digging in the {garden|sand}|{swimming|fishing|rowing} in the {lake|river}""",
    month="January|February|March|April|May|June|July|August|September|October|November|December",
    weekday="Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday",
    wx="""bright|cool|warm|grey|windy|misty|quiet|cloudy|mild|fresh|calm|lazy|golden|clear|sunny|fine|still|pleasant|chilly|foggy|dewy|crisp|lovely|gentle
|glorious|sleepy|busy|silent|dry|pale|peaceful|dull""",
    part="morning|evening|afternoon|morning|day",
    when="""one [wx] [month] [part]|one [wx] [weekday] [part]|one [wx] [weekday] in [month]|on a [wx] [month] [part]|early one [wx] [weekday]
|late one [wx] [weekday]""",
    later="soon|presently|later|finally|eventually|afterwards|{two|three|five|ten|twenty|fifteen|thirty} minutes later|{two|three|four|five} hours later|towards {noon|evening|sunset|supper}|around {noon|two|three|four|five|six|seven}|before {noon|supper|sunset|dark}|after {lunch|supper|tea}",
    days="{two|three|four|five|six|seven|eight|nine|ten|eleven|twelve} days later|{two|three|four|five} weeks later|{two|three} months later|next {Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday|week|month}|one {Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday} in {January|February|March|April|May|June|July|August|September|October|November|December}|in {January|February|March|April|May|June|July|August|September|October|November|December}",
    tone="""slowly|quickly|quietly|happily|eagerly|gladly|calmly|cheerfully|patiently|softly|gently|proudly|bravely|briskly|politely|hurriedly|excitedly|warmly
|thoughtfully|joyfully|kindly|hopefully|shyly|earnestly|seriously|solemnly|firmly|peacefully|brightly|sweetly|modestly|mildly|fondly|dreamily|boldly
|tenderly|curiously|fearlessly|honestly|intently|keenly|lovingly|loyally|openly|stubbornly|thankfully|timidly|willingly|wisely|wistfully|cleverly
|frankly|heartily|meekly|nicely|
{with a {smile|grin|nod|laugh|wink|shrug|sigh}|in a {low|friendly|soft|clear|cheerful|gentle|quiet|merry|warm|calm|kind|steady} voice}|{, looking at|and pointed at|and nodded towards|, stopping at} [landmark]|{, looking at|and pointed at|and looked towards|, leaning on} [landmark]|, looking {up|down|around|towards <home>|towards <place>}""",
    way="""slowly|quickly|quietly|happily|eagerly|carefully|gladly|calmly|cheerfully|patiently|steadily|softly|gently|proudly|bravely|silently|briskly|politely
|hurriedly|excitedly|swiftly|lightly|warmly|thoughtfully|busily|joyfully|kindly|hopefully|shyly|earnestly|seriously|solemnly|firmly|peacefully|brightly
|sweetly|modestly|mildly|fondly|dreamily|boldly|tenderly|curiously|fearlessly|honestly|intently|keenly|lovingly|loyally|neatly|nimbly|openly|readily
|smoothly|stubbornly|thankfully|timidly|willingly|wisely|wistfully|blissfully|cleverly|frankly|heartily|meekly|nicely|soundlessly|tidily""",
    said="remarked|said|said|answered|replied|whispered|murmured|declared|explained",
    trade="baker|miller|postman|farmer|gardener|fisherman|tailor|carpenter|doctor|painter|clockmaker|blacksmith|sailor|teacher|shepherd",
    cried="cried|shouted|called|exclaimed|gasped",
    glad="glad|happy|delighted|pleased|cheerful|proud|thankful|relieved|content|merry|lucky|hopeful|excited|joyful|overjoyed|light|calm|amazed",
    sad="""sad|unhappy|worried|upset|gloomy|troubled|miserable|downhearted|lonely|cross|ashamed|anxious|bitter|glum|hurt|sorry|sorrowful|tearful|helpless|weary
|tired|weak|pale|restless|angry|sour|grumpy|dismal|wretched|shaken""",
    good="fine|lovely|wonderful|splendid|beautiful|marvellous|perfect|delightful|excellent|tasty",
    color="""red|blue|green|yellow|purple|orange|white|brown|silver|golden|pink|grey|striped|spotted|black|cream|scarlet|copper|violet|checked|bronze|beige|maroon
|navy|tan|lilac|emerald|olive|lemon|coral|rusty|pearly|sandy|rosy|bluish|greenish|speckled""",
    look="""old|new|shiny|tiny|pretty|little|strange|lovely|small|big|plain|funny|fancy|odd|fine|handsome|neat|light|smooth|clean|round|rare|worn|sturdy|good
|simple|heavy|slim|dainty|dusty|curious|cheap|polished|homemade|patched|quaint|sparkling|glossy|crooked|cute|scratched|dented|spare|delicate|graceful
|modern|mysterious|common|useful|special|perfect|borrowed|forgotten|wide|narrow|short|long|solid|charming|treasured|painted|huge""",
    fruit="""apple|plum|cherry|lemon|carrot|honey|pear|berry|nut|cheese|pumpkin|raisin|peach|ginger|oat|potato|walnut|orange|banana|almond|butter|onion|mushroom
|spinach|tomato|blueberry|strawberry|currant|fig|melon|cabbage""",
    food="{warm|fresh|sweet|crisp|soft|small} [fruit] {cakes|pies|bread|buns|tarts|cookies|muffins|pancakes|pudding|waffles}|{warm|fresh|sweet|crisp|soft|small} [fruit] {cakes|pies|bread|buns|tarts|cookies|muffins|pancakes|pudding|waffles}|a {jug|pot|can|bottle|mug|flask} of {warm|sweet|fresh|hot|cold|spicy} {milk|soup|cocoa|tea|lemonade|cider|punch|[fruit] juice}",
    tadj="""old|low|mossy|crooked|sunny|wooden|wet|white|green|grey|high|broken|painted|stone|narrow|dusty|round|bare|cold|long|shady|tidy|worn|muddy|steep|square
|blue|red|yellow|rusty|brown|leaning|dry|damp|empty|hidden|tall|short|wide|thick|thin|strong|small|big|huge|ruined|lonely|quiet|famous|new|ugly|pretty
|handsome|rough|smooth|dark|bright|black|pink|orange|silver|golden|cracked|slippery|warm|crumbling|polished|sturdy|plain|little|neat|simple|heavy
|marble|brick|iron|grand|silent""",
    tnoun="""post|bench|wall|gate|fence|chimney|hedge|barn|cart|ladder|bridge|barrel|shed|well|step|tree|stone|trough|stile|tower|log|stump|pump|porch|column|kennel
|bush|wagon|rock|roof|woodpile|pillar|statue|fountain|doorstep|arch|lamp|bucket|crate|basket|wheelbarrow|sign|henhouse|greenhouse|oak|willow|pine|birch
|pear tree|apple tree|cherry tree|rain barrel|boat|tractor|plough|mill wheel|stable|hut|tent|flagpole|milk can|pond|puddle|rose bush|sundial|beehive
|garden chair|weather vane|bird bath|drain pipe|letter box""",
    bird="""robin|blackbird|sparrow|crow|pigeon|magpie|swallow|finch|thrush|starling|seagull|wren|jay|dove|cuckoo|lark|heron|owl|raven|swift|kingfisher|nightingale
|falcon|stork|hawk|parrot|nuthatch""",
    pet="""cat|dog|goat|hen|duck|goose|donkey|pony|hedgehog|squirrel|rabbit|frog|toad|lamb|calf|pig|sheep|cow|hare|mouse|snail|lizard|turkey|kitten|puppy|duckling
|chicken|badger|fox|hamster|horse|foal|mole|beaver|otter""",
    acolor="""grey|brown|black|white|spotted|striped|fat|thin|young|old|little|sleepy|red|golden|lame|tame|lazy|proud|shy|big|small|plump|curious|hungry|quiet|noisy
|cheerful|wet|dusty|muddy|clever|friendly|bold|lonely|handsome|slim|tired|pretty|merry|grumpy|lost|busy|patient""",
    scene="""a [acolor] [bird] {sang|called|chirped|whistled|sat|rested|hopped about} {on|near|above|beside} [landmark]|
a [acolor] [pet] {slept|dozed|rested|sat|waited|yawned|lay} {beside|near|behind|by} [landmark]|
{two|three|four|some|a few} [acolor] {sparrows|pigeons|ducks|hens|geese|butterflies|crows|swallows} {sat|rested|waited|gathered} {on|near|beside} [landmark]""",
    sky="the {sun|moon|wind|rain|fog|light|breeze|sky} over [mapname] {Hill|Lake|Bridge|Tower|Wood|Church|Bay|Mill} was {soft|warm|cool|pale|gentle|golden|mild|grey|silver|pink|still|bright}|the {clouds|leaves|shadows|trees|puddles|roofs|fields|hedges} of [mapname] {Hill|Valley|Street|Farm|Wood|Lane} were {grey|golden|pink|still|bright|long|silver|wet|pale|blue}",
    stuff="{old|rusty|muddy|lost|broken|wet|dusty|single|torn|bent|dirty|worn|cracked|faded|dull|empty|plain|cheap|forgotten|dented|tiny|big|small|heavy|thin|wooden|grey|brown|black|green}",
    junk="""a [stuff] {shoe|glove|button|spoon|bottle|basket|bucket|hat|box|bell|cup|key|coin|whistle|jar|sock|kettle|nail|candle|fork|belt|bowl|brush|comb|pipe|rope|sack|pot|lamp|plate|ladle|ribbon|hook|wheel|boot|slipper|mitten|tray|lid|chain|bolt|spade|rake|broom|sponge|mug|thimble|buckle|stamp|newspaper|umbrella|saucer|funnel|cork|spring|sieve|tile|paddle|horseshoe|feather|walnut}|
a {fat|sleepy|striped|surprised|green|tiny|cross|brown|shiny|long|grey|spotted|cold|lazy|hairy|small|big|busy|black|red|yellow|slow|shy|noisy|angry|pale|curious|lonely} {beetle|snail|frog|spider|worm|mouse|caterpillar|toad|moth|hen|lizard|ladybird|ant|cricket|grasshopper|bee|fly|newt|dragonfly|wasp|slug|bat|rat|mole|gnat|hornet|shrew|vole}|
{some|three|seven|a few|five|many|two|four|six} {dry|wet|brown|muddy|old|grey|flat|round|broken|cold|dusty|small|smooth|pale|dark|sharp|torn|white|rotten|loose} {leaves|feathers|pebbles|pine cones|acorns|shells|twigs|corks|sticks|rags|bricks|nails|stones|straws|buttons|crumbs|roots|nuts|bottles|seeds|wires|boards|bones|coins|petals|cards|papers|tiles|weeds|apples}""",
    landmark="{a|the} [tadj] [tnoun] {of|near|behind|beside|at} [mapname] {House|Farm|Inn|Hall|Cottage|Lodge|School|Mill|Bridge|Tower|Church|Street|Lane|Hill}",
    house="{small|little|tall|narrow|crooked|cosy|old|quiet|bright|low|tidy|warm|neat|plain} [color] {house|cottage|farmhouse|cabin} near [mapname] {Mill|Church|Bridge|Inn|Hall|Gate|Wood|Tower}",
    hey="|||Dear |Oh |Well, |Listen, |You know, |Look, |Now, |My dear ",
    dear="||||dear |my dear ",
    family="<his> {mother|father|parents|grandmother|grandfather|aunt|uncle} and {two|three|four|five} [acolor] {hens|cats|goats|dogs|rabbits|ducks}|<his> {mother|father|grandmother|grandfather|aunt|uncle|parents}",
    virtue="patience|honesty|kindness|sharing|listening|helping|friendship|loyalty|trust|hope|care|truth|humour|practice|peace|modesty|love|faith|calm|thrift|music",
    vice="""gold|anger|pride|lying|hurry|fame|silver|boasting|hiding|winning|sulking|envy|grumbling|worry|luck|crying|glory|treasure|cheating|quarrelling|fear
|shouting|revenge|laziness|greed|noise|money|power|spite|scorn""",
)
LISTS.update((name, spin.alternatives(words)) for name, words in _WORDS.items())
LISTS["mapname"] = """Acorn Alder Amber Anchor Apple Arrow Aspen Autumn Badger Barley Beaver Beech Berry Birch Blossom Bluebell Bonnet Bramble Breeze Bridle
Bronze Button Candle Cedar Cherry Chestnut Clover Cobble Copper Coral Cotton Cowslip Cricket Crystal Daffodil Dandelion Dolphin Dove
Duckling Eagle Elder Ember Falcon Feather Fiddle Finch Foxglove Garnet Ginger Goose Hawthorn Hazelnut Heather Hedgehog Heron Honey Juniper
Kettle Kingfisher Lantern Lark Laurel Lavender Lemon Linden Magpie Maple Marigold Meadow Mint Mistletoe Moonlight Mulberry Mushroom Nettle
Nightingale Nutmeg Oak Orchard Osprey Otter Parsley Peach Pebble Pepper Pigeon Pine Plum Poplar Poppy Primrose Pumpkin Quartz Quill Rabbit
Raven Ribbon Rocket Rosemary Saddle Saffron Sage Salmon Seagull Shell Silver Skylark Snail Snowdrop Sparrow Squirrel Starling Summer
Sunflower Swallow Sycamore Thimble Thistle Thunder Timber Trout Tulip Turtle Velvet Violet Walnut Wheel Whistle Willow Winter Wren Yarrow
Almond Antler Arbour Ash Banner Barrel Bear Bellflower Blackbird Boulder Bracken Briar Buckle Butterfly Camel Canary Caramel Carnation
Carrot Castle Chalk Cloud Cobalt Comet Cornflower Cranberry Crane Crown Cuckoo Diamond Donkey Dragon Drum Elm Emerald Fig Flint Fountain
Fox Garland Gingerbread Gold Granite Grape Hammer Harp Harvest Hive Iron Island Ivory Kite Ladder Lamp Leaf Lilac Lion Lobster Lotus Lupin
Mallow Mango Marble Melon Midnight Mirror Mole Moon Moss Moth Mountain Nutshell Onion Orange Orchid Oyster Panther Paper Parrot Peacock
Peony Plover Quince Reed River Rose Rye Sailor Sand Sheep Sickle Snow Sparkle Spruce Star Stork Storm Straw Sugar Sunbeam Swan Sword Teapot
Tiger Topaz Torch Trumpet Vine Wagon Water Wheat Wolf Wood Zebra""".split()

_TOYS = "kite|ball|drum|boat|doll|robot|whistle|puppet|flute|wagon|teddy bear|bucket|lantern|scarf|hat|bell|box|book|umbrella|basket|backpack|necklace|marble|notebook|pencil case|camera|watch|blanket|jacket|ribbon|compass|puzzle|toy car|toy horse|toy train|paintbrush|purse|flag|telescope|trumpet|lunch box|bracelet|mirror|badge|rope|violin|sled|clock|guitar|teapot|cup|mug|vase|fan|belt|cap|cushion|pillow|ring|brooch|spoon|magnet|spinning top|rocking horse|music box|toy ship|toy plane|toy duck|toy bear|dice cup|globe|map|rug|shawl|tie|hairbrush|comb|snow globe|rubber ball|butterfly net|fishing rod|paint box|picture book|money box|pocket knife|wooden sword|skipping rope|paper crown|toy castle|water bottle".split("|")
_BREAKABLE = "drum|boat|doll|robot|flute|wagon|lantern|cup|bell|box|umbrella|watch|camera|telescope|mirror|violin|clock|vase|compass|toy car|toy horse|sled|puppet|kite|jug|teapot|lamp|plate|bowl|toy train|guitar|mug|fan|globe|music box|toy ship|toy plane|snow globe|money box|toy castle|brooch|comb|rocking horse|fishing rod|paint box|spinning top|sugar bowl|flower pot|radio|picture frame".split("|")

# A kind of place, how one is there, and what lies about in it.
_PLACES = {
    "Park": ("in", "bench|fountain|swing|pond|rose bush|gate|statue|lamp post"), "Beach": ("on", "rock|boat|sandcastle|dune|hut|pier|barrel|net"),
    "Farm": ("at", "barn|cart|hen house|well|stable|haystack|fence|trough"), "Forest": ("in", "fern|oak|stream|log|bush|branch|root|stump"),
    "Garden": ("in", "shed|flower pot|rain barrel|fence|plum tree|bird bath|bench|wall"), "Market": ("at", "fruit stall|basket|wagon|clock|step|barrow|crate|barrel"),
    "Meadow": ("in", "wall|willow|brook|gate|stone|hedge|beehive|bush"), "Harbour": ("at", "net|boat|barrel|crate|rope|ladder|anchor|hut"),
    "Mill": ("at", "wheel|sack|millstone|bridge|stair|cart|door|trough"), "Hill": ("on", "stone|pine|hut|wall|bush|tower|sign|log"),
    "Lake": ("at", "pier|boat|reed bed|rock|hut|bench|willow|log"), "Orchard": ("in", "ladder|apple tree|cart|basket|wall|gate|pear tree|crate"),
}
_ADJ = "{old|tall|long|mossy|broken|narrow|wide|empty|painted|crooked|dark|wooden|dusty|cracked|big|small|quiet}"
_HOMES = ["Street", "Lane", "Road", "Square", "Row", "Corner", "Court", "Alley"]
_ELDERS = ["mother", "father", "grandmother", "grandfather", "aunt", "uncle", "teacher", "neighbour"]


# Words that stand for each other wherever the plots use them, and things that bear an adjective, the same all through a story.
_ALIKE = {"ran": "ran|hurried|dashed|raced|rushed", "walked": "walked|strolled|wandered|marched", "saw": "saw|noticed|spotted", "found": "found|discovered", "small": "small|little|tiny", "very": "very|really|quite",
          "laughed": "laughed|chuckled", "smiled": "smiled|grinned|beamed", "began": "began|started", "gave": "gave|handed", "brought": "brought|carried", "nodded": "nodded|winked|smiled", "cheered": "cheered|clapped",
          "jumped": "jumped|leapt", "whispered": "whispered|murmured|breathed", "together": "together|side by side", "away": "away|off", "wanted": "wanted|hoped|wished"}
_ROOM = "narrow|long|quiet|dark|sunny|cold|warm|dusty|old|small|big|empty|tidy".split("|")
_OLD = "old|small|plain|big|heavy|fine|dusty|pretty|worn|shiny".split("|")
_GOOD = "lovely|merry|little|wonderful|grand|cheerful|jolly|simple|secret|short".split("|")
_EPITHETS = {**dict.fromkeys(["kitchen", "hall", "attic", "bedroom", "shop", "path", "road", "cellar", "house", "stream", "corridor"], _ROOM),
             **dict.fromkeys(["table", "door", "window", "map", "letter", "ladder", "box", "coins", "pieces", "basket", "seed", "glue", "book", "pocket"], _OLD),
             **dict.fromkeys(["neighbours", "crowd", "judge", "mayor", "guests", "children"], "friendly|merry|curious|kind|cheerful|noisy|proud|good".split("|")), **dict.fromkeys(["party", "picnic", "poem", "present", "gift"], _GOOD)}
LISTS.update(("~" + word, alike.split("|")) for word, alike in _ALIKE.items())
# What may come before a sentence that begins with a name.
_OPENERS = ["So", "Now", "Then", "Soon", "Next", "Afterwards", "Presently", "At once"]
_VARIED = re.compile(r"\[[^]]*\]|<[^>]*>|\b(the|his|her|a|their) (%s)\b|(?<!-)\b(%s)\b" % ("|".join(_EPITHETS), "|".join(_ALIKE)))


class _State(dict):
    """A story's world: what it has not settled yet, the adjective of a thing, is settled when it is first asked for."""

    def __missing__(self, key):
        self[key] = pick(self["rng"], _EPITHETS[key[1:]])
        return self[key]


@functools.cache
def _varied(template):
    def vary(match):
        if match[2]:
            return "%s <~%s> %s" % (match[1], match[2], match[2])
        return "[~%s]" % match[3] if match[3] else match[0]

    return _VARIED.sub(vary, template.replace("\n", ""))


def _pronouns(c, prefix, female):
    for word, value in zip(("he", "him", "his"), ("she", "her", "her") if female else ("he", "him", "his")):
        c[prefix + word] = value
        c[(prefix + word).capitalize()] = value.capitalize()


def _thing(c, nouns):
    """Names a thing: "kite", "green kite" and "shiny green kite"."""
    c["o"] = pick(c["rng"], nouns)
    c["co"] = pick(c["rng"], LISTS["color"]) + " " + c["o"]
    c["obj"] = pick(c["rng"], LISTS["look"]) + " " + c["co"]


def _settle(c, kinds=None):
    """Chooses the place and three spots there."""
    kind = pick(c["rng"], sorted(kinds or _PLACES))
    preposition, spots = _PLACES[kind]
    c["pl"] = kind.lower()
    c["place"] = pick(c["rng"], LISTS["mapname"]) + " " + kind
    c["at"] = preposition + " " + c["place"]
    for i, spot in enumerate(sample(c["rng"], spots.split("|"), 3)):
        c["spot%d" % (i + 1)] = expand("{under|behind|beside|near|next to} {a|the} " + pick(c["rng"], [_ADJ + " " + spot, spot + " of [mapname] {House|Farm|Inn|Hall|Cottage|Lodge}"]), c["rng"])


def _cast(rng):
    c = _State(rng=rng)
    female = rng.random() < 0.5
    for key, prefix, her in (("h", "", female), ("f", "f", not female)):
        c[key] = pick(rng, heldout.GIRLS if her else heldout.BOYS)
        c[prefix + "kind"] = "girl" if her else "boy"
        _pronouns(c, prefix, her)
    c["rel"] = pick(rng, ["friend", "best friend", "cousin", "old friend", "neighbour", "classmate", "playmate"])
    c["el"] = pick(rng, _ELDERS)
    c["home"] = pick(rng, LISTS["mapname"]) + " " + pick(rng, _HOMES)
    _thing(c, _TOYS)
    _settle(c)
    return c


_INTRO = """{{Once upon a time|Once|Long ago|Not long ago|Some years ago}, a [trait] and [trait] <kind> {named|called} <h> lived {in|at the end of|on the corner of} <home>.|
<h> was a [trait] and [trait] <kind> from <home> who {loved|liked|enjoyed} [hobby] {and|or} [hobby].|
In <home> lived <h>, a [trait], [trait] and [trait] <kind>.|
{There was once|Once there was|There once was} a [trait] <kind> {named|called} <h> in <home> who {loved|liked|enjoyed} [hobby].|
{Everyone|Everybody|Every child} in <home> knew <h>, the [trait] and [trait] <kind> who {loved|liked|enjoyed} [hobby].|
<h> lived in <home> with [family] and was [trait], [trait] and [trait].|
This is {the story of|a story about} <h>, a [trait] and [trait] <kind> from <home>.}"""
_FRIEND = """{<His> <rel> <f> {lived in|came from} [mapname] {Street|Lane|Road|Square} and was [trait], [trait] and {very|rather|always|never very} [trait].|
<His> [trait] <rel>, a [trait] <fkind> from [mapname] {Street|Lane|Road|Square}, was {called|named} <f>.|
<f>, <his> <rel>, was a [trait] and [trait] <fkind> from [mapname] {Street|Lane|Road|Square}.|
<His> <rel> <f> was as [trait] as <h> was [trait] and {even more|always more|never less} [trait].}"""
_SCENE = "{[scene], and [sky].|[sky], and [scene].}"
_CLOSE = """{That {night|evening}, <h> lay under a [look] [color] blanket in <home>, thought of <f> and {smiled|laughed softly|fell asleep at once|slept {deeply|well|soundly|like a stone}}.|
<h> and <f> {knew|learned|agreed|understood|discovered} that [virtue] is {better|stronger|richer|wiser} than [vice].|
\"[hey]<h>, [virtue] is {better|worth more|stronger} than [vice],\" said <his> <el> [tone].|
{In the evening|Afterwards|To celebrate|When they came home}, <his> <el> {brought|gave|served|made} {<h> and <f>|<f> and <h>} [food] and [food].|
{And whenever|Whenever|Each time} <h> {passed|saw|thought of} <place>, <he> {smiled|laughed|stopped} and {thought of|waved to|told a story about} <f>.|
<f> and <h> {walked|skipped|ran|strolled} home {to <home>|under the first stars|in the evening light|hand in hand|side by side}, {singing|talking|laughing|humming} [way].|
{That night|That evening|At bedtime|At supper|Before bed}, <h> told <his> {mother|father|parents|grandmother|grandfather} about <f> and <place> {twice|slowly|with shining eyes|between two yawns|with big gestures}.}"""


def _lost(c):
    c["topic"] = "a lost " + c["o"]
    return ["[when], <h> took a <obj> to <place> and {played|stayed|ran about|walked around} there {until lunch|for an hour|all morning|for a long time|until it grew cool}.",
            "<h> {noticed|saw|found out} {on the way home|at the gate|back in <home>|at the corner of <home>} that the <co> was {gone|missing|lost}.",
            "\"[hey]<f>, {I have lost|I cannot find|I must have dropped|I miss|I want} my <obj>!\" [cried] <h>, {who was|and <he> felt|and <he> looked} [sad] and [sad].",
            "\"{Do not cry|Do not worry|Never mind|Cheer up|Come with me|Be calm}, <h>, we will {look for it|find it|search for it|go back} {together|at once|right now|this minute|before supper},\" [said] <f> [tone].",
            "{They|The two|<f> and <h>} {ran|walked} back to <place>, and <f> looked <spot1> but {saw|found|met} only [junk].",
            "<h> {searched|looked|felt about} <spot2> and {saw|found|met} [junk], {but no <o>|but not the <co>|and [scene]}.",
            "[later], <f> {saw|found} something [color] {lying|hanging|shining|waiting|half hidden} <spot3> and {called|waved to|pulled at} <h> [way].",
            "It was the <co>, {a little|rather|very} {wet|dirty|dusty|muddy|cold}, but {whole|safe|unbroken}, and <h> {danced|jumped|cheered|sang} [way].",
            "<h> {hugged|thanked|kissed} <f> [way] and {tied|fixed|sewed|fastened} a [look] [color] {string|ribbon|label|bell} to the <co> that {evening|afternoon|[weekday]}."]


_FEARS = [
    ("the dark", "{saw|imagined} {monsters|giants|dragons|wolves|ghosts} in {every|each} {shadow|corner} of {<home>|the bedroom}", "<f> {brought|gave|lent} <h> a [look] [color] {lantern|lamp} and {made|showed <him>} the funny shadow of a [acolor] {rabbit|dog|duck|swan|goat}", "<h> {slept|lay in bed} without {a lamp|any light}, under a [look] [color] blanket"),
    ("thunder", "hid {under|behind} {a|the} [tadj] {table|curtain|sofa|bed} at the first {rumble|flash|bang}", "<f> {sat|stayed} beside <h> and {taught|helped} <him> to count [way] between {flash and rumble|lightning and thunder}", "<h> watched a {whole|great|loud} storm over <place> {from the window|through the open door}"),
    ("deep water", "{stayed|stood} {beside|behind} {a|the} [tadj] {rock|boat|fence|hut} when {others|other children} {swam|jumped in}", "<f> held <h> in the {shallow|cold|clear|warm|brown|calm} water <at> and {taught|showed} <him> to {float like a leaf|kick like a frog|blow bubbles|breathe} [way]", "<h> swam {across|through} [mapname] {Bay|Lake|Pool} {and back|twice|to the [tadj] hut}"),
    ("dogs", "{crossed the road|climbed on a [tadj] wall|hid behind a [tadj] gate|ran home} when a [acolor] {one|dog} came {near|along}", "<f> {came with|brought} a [acolor] dog {named|called} [mapname] and {showed|taught} <h> to hold out a hand [way]", "<h> {scratched|stroked} a [acolor] and [acolor] dog" + " {behind the ears|under the chin|on its back}"),
    ("high places", "{stayed|waited} beside {a|the} [tadj] {wall|bench|gate} when {others|other children} climbed {trees|the tower|the rocks}", "<f> climbed {two|three|four|five|six} [tadj] steps with <h> {every|each} {day|morning|afternoon|[weekday]} and {told|taught} <him> to look {up|ahead|at the sky}", "<h> stood on top of the [tadj] tower of <place> and {waved|sang|looked around}"),
    ("speaking aloud", "{turned red|trembled|lost <his> voice|forgot every word} in front of {<f> and the class|a crowd in <home>|<f> and <his> <el>}, {red|pale} and [sad]", "<f> listened to <h> [way] {every|each} {evening|day|afternoon|[weekday]}, {<spot1>|<spot2>} <at>", "<h> [way] read a {long|short|funny|lovely|sad} poem about {a|the} [acolor] [pet] {to <f>'s class|at [mapname] School|in [mapname] Hall}"),
]


def _fear(c):
    what, sign, cure, triumph = pick(c["rng"], _FEARS)
    c["topic"] = "being afraid of " + what
    return ["But <h>, unlike <f>, was {terribly|very|rather|quite|secretly} {afraid|scared|frightened} of %s. <h> {often|always|usually} %s." % (what, sign),
            "<h> {told nobody in <home>|never spoke to <f>|never told <his> <el>} about it and {felt|was} [sad] and [sad].",
            "[when], <f> {noticed|saw|guessed} it <at> and asked [tone], \"Are you {afraid|scared|frightened}, [dear]<h>?\"",
            "\"{Yes|A little|Very much|Sometimes|Always}, [dear]<f>,\" {said|whispered|answered} <h> {softly|sadly|in a small voice|close to tears|looking at <his> shoes|looking away}, and [scene].",
            "\"[hey]<h>, I {was|used to be} afraid of {spiders|bees|cellars|ghosts|wolves|cows|frogs|geese|owls|snakes|bats|mice},\" [said] <f> [tone]. \"{I can help|We can practise|Courage grows|Fear passes|It gets easier}, [dear]<h>.\"",
            "So {on [weekday]|in [month]|that {evening|day|week}|the next {day|morning}} " + cure + ".",
            "<h> {shook|trembled|sighed|wanted to run} [way] {at first|on the first day|in the beginning}, but <f> stayed {close|near|there} [way], and <h> [way] grew {calmer|braver|bolder|stronger}.",
            "[days], %s, and <f> {cheered|clapped|beamed|laughed} [way]." % triumph,
            "\"I {did it|was brave|made it|am free|am brave now}, [dear]<f>!\" [cried] <h>, [glad] and {tired|laughing|out of breath|red in the face|a little dizzy}."]


def _share(c):
    c["topic"] = "learning to share"
    return ["{[when], <h> and <f> {found|saw} a <obj> <spot1> <at>.|[when], <his> <el> {gave|brought} <h> and <f> a <obj> <at>.}",
            "\"The <co> is {mine|for me|all mine}, [dear]<f>!\" [cried] <h>. \"No, <h>, {I saw it first|it is mine|let go|give it to me|I want it}!\" [cried] <f>.",
            "<h> and <f> {pulled|tugged} at the <obj> until it {fell|flew|landed} in a {deep|muddy|cold|wide|shallow|dirty|brown|green|dark} {puddle|ditch|pond|stream|hole|barrel} {beside|near|behind} [landmark].",
            "<f> {walked|ran|went} {away|home} [way], and <h> {sat|stood} {<spot2>|<spot3>} with a {wet|dirty|dripping} <o>, [sad] and [sad].",
            "<h>'s <el> {came along|passed|came out} [way] and asked [tone], \"{What is|What good is|Who needs} a <co> without <f>?\"",
            "<h> {blushed|sighed|looked down|thought about it|nodded}, {washed|dried|wiped} the <co> [way] and {went|walked|ran} {through the rain|past [junk]|past a [acolor] [pet]} to <f>'s [tadj] {door|gate|house}.",
            "\"{I am sorry|Forgive me|I was wrong|I was silly}, <f>, you {may|can} {have the <co> first|keep the <co> today|start with the <co>},\" [said] <h> [tone].",
            "\"{Let us take turns|Let us use it together|Let us play together|We can share it}, [dear]<h>,\" [said] <f> [tone], and {both|the two} {laughed|smiled|felt [glad]}.",
            "[later], <h> and <f> {played|ran about|sat} with the <co> {<spot2>|<spot3>}, while [scene]."]


_CRAFTS = [("birdhouse", "wood and nails", "the roof fell off"), ("scarf", "soft wool", "a thread came loose"), ("bowl", "wet clay", "the rim cracked"), ("picture", "paper and paint", "a cat walked over it"),
           ("necklace", "string and beads", "the string broke"), ("lantern", "paper and sticks", "the paper tore"), ("boat", "bark and leaves", "the mast snapped"), ("puppet", "cloth and buttons", "an arm came off"),
           ("basket", "willow twigs", "the handle split"), ("flute", "a branch of elder", "it made no sound"), ("kite", "silk and string", "the tail came off"), ("box", "thin boards", "the lid jammed")]


def _gift(c):
    thing, stuff, mishap = pick(c["rng"], _CRAFTS)
    c["thing"] = pick(c["rng"], LISTS["color"]) + " " + thing
    c["topic"] = "a birthday present"
    return ["[when], <h> {remembered|thought of} <f>'s birthday, but <h> [way] {found|counted} only {two|three|four|five|six} {coins|pennies} and [junk].",
            "\"{Make|Build|You could make|Why not make} {something|a present|a gift} {yourself|by hand|for <f>}, [dear]<h>,\" [said] <his> <el> [tone].",
            "So <h> {gathered|found|collected|borrowed} %s and {made|began} a [look] <thing> at {a|the} [tadj] {table|desk|bench|window}, while [scene]." % stuff,
            "[later], %s, and <h> felt [sad] and [sad] and [way] {sat down|lay down|cried} {near|beside|behind} {a|the} [tadj] {chair|stove|lamp|box|door|window|shelf}." % mishap,
            "\"{Try|Start|Begin} {again|once more}, <h>, {slowly|without hurry|with care|step by step},\" [said] <his> <el> [tone], so <h> {mended|repaired|finished} the <thing> [way].",
            "At the party <at>, {the others|the guests|<his> cousins|<f>'s cousins} {gave|brought} <f> a <obj> and [food].",
            "<h> felt [sad] and {hid|put} the <thing> <spot1>, but <f> {found|saw} it [way].",
            "\"Did you {make|build} {this|it} {yourself|for me|all alone}, [dear]<h>?\" asked <f>, {turning|holding|lifting} the <thing> [way].",
            "<h> nodded [way]. \"{I love it|I like it best|It beats the <co>|I will keep it}, [dear]<h>,\" [said] <f> [tone], and [scene]."]


_TRAPS = [("stuck in {a|the} [tadj] tree", "a [look] ladder"), ("trapped in a {deep|muddy|narrow|dark|wet} {hole|ditch|pit}", "a [look] [color] rope"), ("caught in the thorns", "[color] gloves"), ("alone on a rock in the stream", "a [look] plank"),
          ("tangled in {a|the} [tadj] net", "a [look] pair of scissors"), ("locked in {a|the} [tadj] shed", "a [look] key"), ("stuck under a heavy branch", "a [look] pole"), ("lost on {a|the} [tadj] roof", "a [look] ladder")]
_CLUMSY = ("pony", "lamb", "goat", "fox", "turtle", "duckling", "swan", "hare")


def _rescue(c):
    where, tool = pick(c["rng"], _TRAPS)
    c["p"] = pick(c["rng"], "kitten|puppy|duckling|hedgehog|rabbit|owl|squirrel|lamb|goat|fox|sparrow|turtle|swan|pony|hare|pigeon".split("|"))
    if c["p"] in _CLUMSY and ("tree" in where or "roof" in where):
        where, tool = _TRAPS[1]
    c["cp"] = pick(c["rng"], "spotted|grey|brown|black|white|golden|striped|pale|dark".split("|")) + " " + c["p"]
    c["pet"] = pick(c["rng"], "small|little|young|thin|fluffy|shy|tired|frightened|tiny|lonely".split("|")) + " " + c["cp"]
    c["topic"] = "a %s in trouble" % c["p"]
    return ["[when], <h> and <f> {walked|strolled|played|sat and talked} <at>, and [sky].",
            "{Suddenly|Then|All at once} <f> heard a {faint|sad|thin|small|strange|soft} {cry|sound|noise|whimper} {<spot1>|<spot2>|<spot3>} and {called|waved to|held back} <h> [way].",
            "{It was|There was|They saw} a <pet>, " + where + ", and <h> {felt|was} [sad] and {held|took|squeezed} <f>'s hand.",
            "\"{Hold on|Be brave|Wait there|Keep still|Do not be afraid}, little <cp>, {<f> and I will help you|<f> will get help|<f> and I are here|<f> is strong},\" [said] <h> [tone].",
            "<f> {ran|hurried} [way] to a [house] {near|behind|beside} <place> and {came back|returned} with " + tool + ".",
            "{Slowly|Carefully|Gently|Bit by bit|With great care}, <h> and <f> {freed|saved|rescued} the <cp>, while [scene].",
            "<h> {wrapped|warmed|dried} the <p> in a [look] [color] {scarf|jacket|towel|coat}, and <f> gave it {warm water|warm milk|bread|berries|the name [mapname]} [way].",
            "{[days], the <cp> {came|waited|was sitting} {at|by} <h>'s [tadj] {door|gate|window}, {strong|well|healthy|fat} and [glad].|[later], the <cp> {ran|hopped|crept} back to its mother, and <f> {waved|smiled|laughed} [way].}",
            "\"{We did it|It is well again|It will not forget us|Now we have a new friend|Look how happy it is}, [dear]<h>,\" [said] <f> [tone]."]


_PLANTS = [(p, p) for p in "sunflower pumpkin bean carrot tomato rose strawberry tulip cucumber melon pepper radish daisy lily cabbage leek poppy marigold potato turnip".split()] + [("apple", "little apple tree"), ("pear", "little pear tree"), ("oak", "little oak")]


def _grow(c):
    plant, result = pick(c["rng"], _PLANTS)
    c["topic"] = "a%s %s seed" % ("n" if plant[0] in "ao" else "", plant)
    c["pot"] = expand("{beside|behind|near|next to} the [tnoun] of [mapname] {House|Farm|Inn|Hall|Cottage|Lodge}", c["rng"])
    return ["{[when], <his> <el> {gave|handed|brought} <h> a {tiny|small|dry|brown|hard} %s seed from <place>.|[when], <h> {bought|found} a {tiny|small|dry|brown|hard} %s seed <spot1> <at>.}" % (plant, plant),
            "\"{Plant it|Bury it},\" [said] <his> <el> [tone]. \"[hey]<h>, {water it|talk to it|sing to it} {daily|every [weekday]} and {wait|be patient|hope|trust it}.\"",
            "<h> [way] {dug|made} a {small|little|deep|round} hole <pot> with a [look] [color] {spoon|shovel|bucket}, and <f> {laid|put|dropped} the seed {inside|into it} [way].",
            "{Five|Three|Six|Four|Eight|Nine|Seven} days {passed|went by}, but <h> {saw|found} only [junk] <pot> and {felt|grew} [sad].",
            "\"<f>, {it is dead|it will never grow|I give up|nothing happens}!\" {sighed|grumbled|moaned} <h>. \"{Wait|Give it time|Be patient}, <h>,\" [said] <f> [tone], and [scene].",
            "{Every|Each} {morning|evening|day|[weekday]} <h> {watered|guarded|watched} the earth <pot> [way], and <f> {sang|talked|told stories|read poems} to it [way].",
            "[days], <h> {saw|found} a {tiny|pale|bright|thin|small} {green leaf|shoot|tip} <pot> and {called|fetched|ran to} <f> [way].",
            "By {August|autumn|September|winter|October}, <h> had a {fine|lovely|wonderful|splendid|marvellous|perfect} %s <pot>, and <f> {praised|measured|sketched|admired|painted} it [way]." % result,
            "<h> and <f> {kept|saved} {two|three|four|five} seeds in a [look] [color] {box|tin|jar}, {ate|shared} [food] and {laughed|sang|danced} [way]."]


_DISHES = [("apple pie", "sugar"), ("carrot cake", "flour"), ("honey cake", "honey"), ("cherry tart", "butter"), ("pumpkin soup", "salt"), ("milk pudding", "milk"), ("pear cake", "cinnamon"), ("onion soup", "pepper"), ("nut bread", "yeast"), ("lemon cake", "butter")]


def _bake(c):
    dish, missing = pick(c["rng"], _DISHES)
    runny = dish.endswith(("soup", "pudding"))
    a_dish = ("some " if runny or "bread" in dish else "an " if dish[0] == "a" else "a ") + dish
    c["topic"] = "making " + a_dish.replace("some ", "")
    c["el"] = pick(c["rng"], _ELDERS[:6])
    c["n"] = pick(c["rng"], LISTS["trait"]) + " " + pick(c["rng"], ["baker", "miller", "postman", "farmer", "gardener", "fisherman", "tailor", "carpenter", "doctor", "painter", "sailor", "teacher"])
    return ["[when], <h> and <f> {decided|wanted|planned} to surprise <his> <el> with %s." % a_dish,
            "<h> {washed|fetched|found|brought} a [look] [color] {bowl|pot|pan|spoon}, and <f> {opened|searched|looked into} the [tadj] {cupboard|cellar|kitchen} [way].",
            "\"{We need|We still need|The recipe asks for|It will not work without} %s, <h>, {but there is only [junk]|but I see only [junk]},\" [said] <f> [tone]." % missing,
            "So <h> {went|ran|walked} [way] to the <n>, who lived in a [house] {near|beside|behind} <place>.",
            "\"{Take|Have} {some|plenty|enough} of my %s, <h>,\" [said] the <n> [tone]. \"But {bring|save} me a {taste|%s|bit}!\"" % (missing, "spoonful" if runny else "bite|piece"),
            "{Back in the kitchen|Soon|At home}, <h> {stirred|mixed} [way], and <f> {tasted|counted|sang|read the recipe} [way], while [scene].",
            "[later], <h> and <f> {carried|brought} the %s to <his> <el> in a [look] [color] {dish|bowl} [way], a little {%sbrown|dark|thin|uneven} but [good]." % (dish, "" if runny else "crooked|flat|"),
            "<His> <el> {ate|had|tasted} {two|three|four|five} {plates|helpings|spoonfuls} and {sang|laughed|hugged <h>|thanked <f>} [way].",
            "<f> {carried|brought|took} {some of it|a good part|the rest} to the <n> in a [look] [color] {bowl|basket|box|dish} [way]."]


def _broken(c):
    _thing(c, _BREAKABLE)
    c["topic"] = "a broken " + c["o"]
    bad, good = sample(c["rng"], ["tape", "string", "wax", "a rubber band", "paper", "strong glue", "a tiny screw", "a piece of wire", "leather", "two nails", "a silk ribbon", "resin"], 2)
    return ["[when], <f> {lent|gave} <h> a <obj> {for a day|for an hour|until supper|for the weekend|until Sunday} and {told|asked} <him> to {be careful|take care|watch it} <at>.",
            "{But|Soon|Sadly,} <h> {tripped over|stumbled over|slipped on|bumped into} [junk] <spot1>, and the <co> {broke|cracked|split}{| in two| in three pieces| down the middle}.",
            "\"What will <f> {say|think} about the <co>?\" {thought|wondered|whispered} <h>, [sad] and {pale|red|trembling|close to tears}.",
            "{First|Quickly|In secret} <h> {tried|used|fetched} %s, but the <co> {fell apart|came apart|broke} {again|once more} <spot2>, and [scene]." % bad,
            "\"{Tell|Go and tell|Just tell|You must tell} <f> the truth about the <o>, [dear]<h>,\" [said] <his> <el> [tone].",
            "So <h> {went|walked|ran} to <f> [way]. \"{I broke|I have broken|I dropped and broke} your <obj>,\" said <h> [tone]. \"{I am sorry|Please forgive me|I am so sorry}, [dear]<f>.\"",
            "<f> [way] {looked at|turned over|studied} the <obj>, {frowned|sighed|paused|nodded|coughed} and {took|squeezed|held} <h>'s [color] sleeve.",
            "\"[hey]<h>, {thank you for telling me|I am glad you told me|it was brave to tell me|you are honest},\" [said] <f> [tone]. \"{We can mend it|We will mend it|Let us mend it} {together|at once|today|now}.\"",
            "<h> and <f> [way] {mended|repaired|fixed} the <co> with %s, and [scene]." % good]


_SPORTS = [("running race", "jogged"), ("swimming race", "swam"), ("kite contest", "flew kites"), ("singing contest", "sang"), ("boat race", "rowed"), ("spelling contest", "spelled long words"), ("sack race", "hopped"),
           ("drawing contest", "drew"), ("jumping contest", "jumped"), ("cooking contest", "cooked"), ("chess contest", "played chess"), ("dancing contest", "danced")]


def _contest(c):
    sport, practise = pick(c["rng"], _SPORTS)
    c["topic"] = "a " + sport
    c["rival"] = pick(c["rng"], "tall|proud|loud|strong|famous|rich|quick".split("|")) + " " + c["kind"] + " from " + pick(c["rng"], LISTS["mapname"]) + " " + pick(c["rng"], ["Street", "Hill", "School"])
    body = ["[when], <f> told <h> about a %s <at>, where the {winner|best} of [mapname] {Valley|Hill|Lake} {got|won} a <obj>." % sport,
            "So <h> {got up|rose} {early|at six|at seven|before breakfast} and %s {<spot1>|<spot2>} {every|each} {day|morning}, while <f> {counted|watched|cheered|kept time} [way]." % practise,
            "\"You {will never|cannot} {win|beat me}, [dear]<h>,\" {laughed|boasted|said} a <rival> [tone].",
            "<h> {said nothing|only smiled|went on|bit <his> lip} and {practised|trained|worked} {harder|longer|more} with <f> [way] {until|before} {[month]|[weekday]}, while [scene]."]
    if c["rng"].random() < 0.5:
        body += ["On the {great|big} day, [scene], and <h> was {nervous|pale|trembling|very quiet} and looked {for|at} <f> [way].",
                 "\"{Just|Only} {do your best|breathe|look at me|think of nothing}, <h>, {and have fun|and smile|then all is well|you are ready},\" [said] <f> [tone].",
                 "<h> {began|started} [way], {forgot|thought of} {the <co>|<f>} and {did <his> best|got better and better|never looked around}.",
                 "[later], {a|the} [trait] {mayor|judge|teacher|sailor|baker} {called|read out|shouted} the name of <h> [way], and <f> {jumped|danced|shouted|clapped} [way].",
                 "The <rival> {shook <h>'s hand|bowed|came over} and {said|whispered}, \"{Well done|You were better|I was wrong|Teach me that}, [dear]<h>.\""]
    else:
        body += ["[days], <h> was {far ahead|in the lead} {<spot1>|<spot2>} when the <rival> {fell|slipped|got hurt|stumbled} <spot3>.",
                 "<h> {stopped|turned back|ran over} [way]. \"{Take my hand|Lean on me|Let me help you},\" [said] <h> [tone]. \"{It is only a <co>|The <co> can wait|I do not need the <co>}.\"",
                 "So <h> {lost|missed|did not win} the <co>, {but|and yet} <f> and {everyone|the whole crowd|<his> <el>} {clapped|cheered|shouted} [way].",
                 "\"{Forgive|Excuse} my {boasting|pride|words}, [dear]<h>,\" said the <rival> [tone]. \"<f> {can be|must be|is surely} proud of {you|such a friend|a friend like you}.\"",
                 "\"[hey]<h>, no [look] [color] <o> {could make|makes} me {prouder|happier},\" [said] <f> [tone]."]
    return body


def _truth(c):
    _thing(c, _BREAKABLE)
    c["topic"] = "telling the truth"
    return ["[when], <h> {played ball|danced|ran|jumped about} in the {big|old|narrow|cold|dark|sunny} {kitchen|hall|attic|shed} at <home>, {although|even though} <his> <el> had {forbidden it|said no}.",
            "<h> {bumped into|knocked over|hit|kicked} [junk] and <his> <el>'s <obj>, and <h> [way] {saw|watched} it {break|crack|shatter}.",
            "<h> [way] {hid|pushed} the broken <o> {under|behind} {a|the} [tadj] {bed|curtain|sofa|chest|cupboard} with [junk].",
            "\"{Where is|Has anyone seen|Who has} my <obj>, [dear]<h>?\" asked <his> <el> [tone], but <h> [way] {said nothing|looked away|looked down|shrugged}.",
            "<h> {lay awake|turned in bed|stayed awake} until {one|two|three|four|five}, [sad] and [sad], while [scene].",
            "{In the morning|The next day|On [weekday]}, <h> told <f>, who [said] [tone], \"{Lies grow|Lies get heavier|Truth gets harder} {daily|hourly|every [weekday]}, [dear]<h>.\"",
            "So <h> {went|walked} to <his> <el> [way], {with <f> close behind|while <f> waited near {a|the} [tadj] {door|gate|stair}|hand in hand with <f>}.",
            "\"I broke your <obj>,\" said <h> [tone]. \"{I hid it|I lied|I kept silent}, and {only |}<f> {knows it|knew it|saw it}.\"",
            "<h>'s <el> {looked at|watched} <him> [way] and {hugged|forgave|kissed|thanked} <h> {beside|near} {a|the} [tadj] {window|door|table|stove|stairs}, while [scene].",
            "<h> and <his> <el> {glued|mended} the <co> {together|after supper|in the kitchen|that evening}, and <f> {held|brought} {the glue|the pieces|a lamp|[food]} [way]."]


def _newkid(c):
    c["topic"] = "a new friend"
    game = pick(c["rng"], ["hide and seek", "marbles", "tag", "catch", "cards", "jump rope", "chess", "football", "hopscotch", "leapfrog"])
    return ["[when], a [trait] <fkind> named <f> {came|moved} from {far away|the mountains|the far north|a big city|an island} to <home>.",
            "<f> sat {alone|all alone|in silence|sadly} <spot1> <at> with a <obj>, [sad] and {shy|pale|quiet}.",
            "The others {walked|ran|played|went} past <f> [way], but <h> {stopped|turned around} [way] and {went over|came closer|sat down} {<spot1>|<spot2>}.",
            "\"{Hello|Hi|Good day}, I am <h> from <home>, and I {like|love|enjoy} [hobby],\" said <h> [tone].",
            "\"I am <f> from [mapname] {Island|Valley|Bay|Bridge}, and {I miss it|I feel lost|I know nobody|this <co> is mine},\" {said|whispered|answered} <f> [tone].",
            "\"<f>, {do you like|can you play|do you know|shall we play} %s?\" asked <h> [tone], and <f> {nodded|smiled|jumped up|laughed} [way]." % game,
            "[later], <h> and <f> were playing %s {<spot2>|<spot3>}, and <f> {{won|lost} {twice|three times|every time}|laughed [way]|ran [way]}." % game,
            "{One by one|Soon|Slowly}, {three|four|five|six} [trait] {children|boys|girls} from [mapname] {Street|Lane|Road} {came closer|stopped to watch}, and <f> {taught|showed} them the {rules|game} [way].",
            "\"[hey]<h>, {now I have a friend|you are my first friend here|now I feel at home|I like it here now},\" [said] <f> [tone] {on the way home|that evening|the next day|at the gate}, and {gave|lent} <him> the <co>."]


_SIGNS = ["the sound of a [color] mill wheel", "a thin line of smoke over [mapname] Street", "a [tadj] wall with the name [mapname] on it", "a row of [look] [color] stones", "the tracks of a [tadj] [color] cart", "the bells of [mapname] Church",
          "a [acolor] dog with a [color] collar", "a [tadj] sign with the word [mapname]", "the lights of [mapname] Bridge"]


def _lostway(c):
    _settle(c, ["Forest", "Hill", "Meadow"])
    c["sign"] = expand(pick(c["rng"], _SIGNS), c["rng"], c)
    c["topic"] = "getting lost"
    return ["[when], <h> and <f> {went|walked|set out} to <place> with a [look] [color] {basket|bag|bucket} to {find|pick|gather} {mushrooms|berries|nuts|flowers|cones|feathers|herbs|roots|leaves|acorns|apples|moss}.",
            "\"{Stay|Keep} on the path, [dear]<h>,\" <his> <el> had said [tone], but a [acolor] {[bird]|squirrel|butterfly|hare} {led|drew|tempted} <f> {away|further|off it}.",
            "[later], <h> and <f> {looked around|stopped|stood still} and saw {only trees|no path|nothing but bushes|only {ferns|fog|tall grass}} and a [acolor] [bird].",
            "\"[hey]<h>, {are we lost|which way is home|do you know the way|is it far to <home>}?\" {asked|whispered} <f>, {holding|clutching} a [look] [color] {basket|stick|bag|scarf} [way].",
            "<h> {was afraid too|was pale|felt cold}, but <h> [way] {took|held|squeezed} <f>'s [color] sleeve. \"[hey]<f>, {be still|stay calm|sit down|listen},\" [said] <h> [tone].",
            "<h> and <f> {sat down|waited|listened} <spot1> for {a minute|a while|five minutes|a long time}, while [scene].",
            "{Suddenly|Then|All at once} <f> {noticed|found|remembered} <sign> and {jumped up|pulled at <h>|called <h>|laughed} [way].",
            "{Slowly|Hand in hand|Step by step}, <f> and <h> {went|walked} that way, past [junk] and over {a|the} [tadj] {bridge|log|wall|hill|fence}.",
            "In <home>, <his> <el> {came|ran} to meet <h> and <f> with a [look] [color] {lantern|blanket|coat} and [food]."]


def _rain(c):
    inside, what = pick(c["rng"], [("tent", "blankets and chairs"), ("ship", "a table and two sheets"), ("theatre", "boxes and socks"), ("castle", "boxes and pillows"), ("shop", "shelves and buttons"), ("train", "all the chairs"), ("cave", "three dark blankets"), ("rocket", "baskets and a ladder")])
    c["topic"] = "a rainy day"
    return ["[when], <h> and <f> had {packed|put} [food] {in|into} a [look] [color] basket for a picnic <at>.",
            "But <f> {saw|noticed} {dark|black|grey|heavy|thick} clouds over <home>, {rain fell|the rain came|it poured}, and a [acolor] [pet] {hid|sat|waited} {under|behind} [landmark].",
            "\"{The day is ruined|It is not fair|I hate rain|Now we cannot go|This is the worst day}, [dear]<f>,\" {grumbled|sighed|moaned} <h> {at|beside} the {wet|cold|big|grey} window, [sad] and [sad].",
            "\"[hey]<h>, {let us|we can|we could} build a %s {in the kitchen|under the stairs|in the attic|in the living room}!\" [said] <f> [tone]." % inside,
            "So <h> {carried|brought|dragged|fetched} %s [way], and <f> {hung up|added|brought} a <obj>." % what,
            "{In the %s|Inside} <h> [way] told <f> {tales|jokes|stories} about {a|the} [acolor] {pirate|dragon|ghost|giant|witch|mouse|bear|king|sailor|robot|thief|knight|wizard|clown} and [junk]." % inside,
            "<h>'s <el> {came in|crawled in|knocked} [way] with [food] and {asked|begged} <f> to {tell more|go on|make room}.",
            "<h> and <f> {laughed|talked|sang} [way] {when|until|even after} the sun came out over <place>, and [scene].",
            "\"I hope it rains {tomorrow|on Sunday|next week|again soon|on my birthday}, [dear]<f>,\" [said] <h> [tone]."]


def _treasure(c):
    c["topic"] = "a treasure map"
    c["co2"] = c["co"]
    c["el"] = pick(c["rng"], _ELDERS[:6])
    _thing(c, _TOYS)
    return ["[when], <h> {found|saw} {an old|a yellow|a torn|a dusty|a folded} map {inside|under|behind} {a|the} [tadj] {book|clock|drawer|picture|trunk|chair} {at home|in <home>}.",
            "It showed <place> with a [color] {cross|star|circle|arrow}, so <h> {ran|took it} to <f> {at once|right away|before breakfast|in slippers|without a coat} and {knocked|rang} [way] at {a|the} [tadj] [color] {door|gate}.",
            "\"[hey]<h>, {let us|we must|we have to} {search|go there|follow it} {today|now|soon|at once},\" {whispered|said|answered} <f>, {reaching for|putting on|looking for} a [look] [color] {hat|coat|scarf|bag}.",
            "{First|At the first mark} <h> and <f> {looked|dug|searched} <spot1> and found {only|nothing but} [junk].",
            "{Then|Next} <f> {turned|studied|held} the map {the other way|upside down|against the light|closer} and led <h> <spot2>, where {they saw|they found only} [junk].",
            "[later], <h> dug <spot3> with a [look] [color] {spoon|stick|shovel}, and <f> {pulled|lifted} out a {dusty|rusty|small|wooden|heavy} [color] {box|chest|trunk} [way].",
            "{Inside|In it} <h> {found|saw} no gold, but a letter from <his> <el>, a <co2> and a <obj>.",
            "\"[hey]<h>, I {hid|buried} the <obj>,\" said <his> <el> [tone]. \"I was only {six|seven|eight|nine|ten|eleven|twelve} then.\"",
            "<h> kept the <co>, <f> {got|kept|took} the <co2>, and <h> {hid|buried} a {new|second} map {for other children|for someone else} <spot1>."]


_FABLES = [("lion", "mouse", "strength", "was caught in a net", "gnawed through the ropes"), ("peacock", "sparrow", "feathers", "did not see the fox", "gave a loud warning"),
           ("stag", "mole", "antlers", "got stuck in the branches", "dug the roots loose"), ("horse", "bee", "speed", "was lost in the fog", "led the way home"),
           ("bear", "hedgehog", "paws", "had a {sharp|long|black|thin|deep} thorn in one paw", "pulled the thorn out"), ("cat", "beetle", "claws", "fell into a barrel", "pushed a stick over the edge"),
           ("swan", "frog", "long neck", "was tangled in the weeds", "untied the weeds"), ("wolf", "squirrel", "loud voice", "was trapped in a pit", "dropped a long vine"),
           ("eagle", "snail", "sharp eyes", "had a broken wing", "brought sweet leaves every day"), ("camel", "lizard", "long legs", "could not find water", "found a hidden well")]


def _fable(c):
    big, small, boast, trouble, save = pick(c["rng"], _FABLES)
    _settle(c, ["Forest", "Hill", "Meadow", "Lake"])
    c["topic"] = "a %s and a %s" % (big, small)
    return ["{Once upon a time|Long ago|Once|In the old days}, a [trait] %s {named|called} <h> lived <at> and boasted [way] to {a|every} [trait] {neighbour|animal|creature|traveller} about <his> {great|fine|famous|wonderful|splendid} %s." % (big, boast),
            "{Nearby|Not far away|Close by}, <spot1>, lived <f>, a [trait] and [trait] %s who {loved|liked} {singing|jokes|sunshine|the rain|riddles|long naps|clean air|sweet berries|games}." % small,
            "[when], <h> met <f> {<spot2>|<spot3>}, where [scene].",
            "\"{Out of my way|You are tiny|I hardly see you|Make room}, <f>, {little one|tiny thing|small fry|poor creature},\" {said|laughed|growled} <h> {loudly|proudly|rudely|coldly|haughtily|scornfully|sternly|impatiently}.",
            "\"{Small can be useful|One day you may need me|I am good for something|Wait and see}, {my friend|dear <h>|big <h>},\" {said|answered|replied} <f> [tone].",
            "[days], <h> %s <spot2>, and {no|not one} [trait] {animal|neighbour|creature} {dared to come|came|heard <him>|knew what to do}." % trouble,
            "Only <f> {came|hurried|set out} {through the grass|over the stones|past [junk]|past a [acolor] [bird]} [way] and %s." % save,
            "<h> {bowed|blushed|was silent} [way] and said [tone], \"{Forgive me|I was foolish|I was wrong|I was blind}, {dear|brave|little|clever} <f>.\"",
            "{From then on|After that|Since then}, <h> the %s and <f> the %s {shared|ate} {berries|their meals|their supper|nuts and roots} {<spot1>|<spot3>} {every|each} {day|evening|[weekday]}." % (big, small)]


_NOISES = [("a {slow|soft|dull|quick|faint} {tapping|knocking}", "a [look] branch {at|against} the [tadj] window"), ("a {slow|soft|dull|quick|faint} {scratching|scraping}", "a [acolor] hedgehog at the [tadj] door"), ("a {low|long|sad|strange|faint} {moan|howl}", "the wind in {an old|a rusty|a cracked} [color] {pipe|bottle|chimney}"), ("a {soft|quick|light|strange|faint} {patter|shuffle} of feet", "a [acolor] cat with a ball of [color] wool"),
           ("a {slow|soft|dull|quick|faint} {dripping sound|drip}", "{an old|a rusty|a loose} tap over a [color] bucket"), ("a {strange|soft|dull|quick|faint} {rattling|clatter}", "a [acolor] mouse in a [color] nut jar"), ("a {deep|low|long|strange|hoarse} {growl|rumble}", "<his> <el>, snoring in a [look] [color] armchair")]


def _night(c):
    c["el"] = pick(c["rng"], _ELDERS[:6])
    noise, cause = pick(c["rng"], _NOISES)
    c["cause"] = expand(cause, c["rng"], c)
    c["topic"] = "a noise in the night"
    return ["[when], <f> {came to stay with|came to visit} <h> {in|near} <home> and brought a <obj> and [food].",
            "<h> and <f> {played|talked|read|told stories} until {nine|ten|eight|late}, and then <h> [way] {put out|blew out} a [look] [color] {lamp|candle|lantern} {near|beside} a [tadj] {chair|bed|window|cupboard|stove|mirror|clock|shelf}.",
            "<f> {woke|sat up} [way] {before dawn|at midnight|at one|at two|at three|at four} and {nudged|called|shook} <h>, for there was " + noise + " {behind|near|beside} {a|the} [tadj] {door|wall|stair|cupboard|window|stove|chest|clock}.",
            "\"[hey]<h>, {is it a ghost|is it a thief|what is that|did you hear that|is somebody there}?\" {whispered|breathed|asked} <f>, {holding|hugging|clutching} the <co> [way].",
            "\"{Come|Get up|Follow me|Listen}, <f>,\" [said] <h> [tone] and [way] {lit|took|lifted} a [look] {lamp|lantern|candle}.",
            "{Slowly|On tiptoe|Barefoot|Step by step}, <h> and <f> {crept|went} past [junk] and {down|along} the [tadj] {stairs|hall|corridor}.",
            "<h> {lifted|raised|held up} the light [way], and <f> saw only <cause>!",
            "\"[hey]<h>, {there is our ghost|what a monster|so that is our thief|how silly we were},\" {laughed|giggled|said} <f> [tone].",
            "{Back in bed|After that|Afterwards} <f> and <h> {ate|shared} [food] and [way] slept in <home> until {nine|ten|eight|the sun rose|noon} under a [look] [color] blanket."]


def _helping(c):
    load = pick(c["rng"], ["basket of potatoes", "bag of coal", "sack of apples", "bundle of firewood", "bucket of water", "pile of books", "box of jars", "crate of cabbages", "bag of flour", "basket of wet clothes"])
    c["old"] = pick(c["rng"], LISTS["trait"]) + " old " + pick(c["rng"], LISTS["trade"])
    c["topic"] = "helping a neighbour"
    return ["[when], <h> was {running|walking|skipping|on <his> way} to <place> to {meet|see} <f> and {fly kites|play ball|go fishing|catch frogs|eat [food]|look at boats}.",
            "<h> [way] {met|greeted|stopped} a <old> with a {heavy|big|full|huge} %s {near|beside|behind} [landmark]." % load,
            "\"{I will carry that|Let me help you|Give me that|That looks heavy},\" said <h> [tone]. \"<f> {can wait|will wait|has time|never hurries}.\"",
            "{Step by step|Slowly|Together|With many stops}, <h> and the <old> {carried|took|brought} the %s {up|down|along} [mapname] {Hill|Street|Lane} to a [house]." % load,
            "<h> listened [way] to a {tale|story} about {a|the} [trait] {king|sailor|queen|giant|thief|captain|dragon} and {a|the} {stolen|golden|magic|lost|hidden} {ring|ship|island|bell|horse|crown|harp}.",
            "\"{Take|Keep|Please take|Please keep} this <obj>, <h>, {you deserve it|you earned it|I am too old},\" [said] the <old> [tone].",
            "<f> was {still |}waiting {crossly|alone|with a long face|with folded arms} <spot1> and asked <h> [tone], \"{Where have you been|Why are you so late|Did you forget me}?\"",
            "<h> told <f> about the <old> [way] and {showed|shared} the <obj>, and <f> {nodded|smiled|listened|sat down|laughed} [way].",
            "\"[hey]<h>, {tomorrow|next time|on [weekday]} {we will both help|I will come with you|we will go together},\" [said] <f> [tone], and [scene]."]


def _saving(c):
    c["topic"] = "saving money for a%s %s" % ("n" if c["o"][0] in "aeiou" else "", c["o"])
    c["sick"] = pick(c["rng"], ["brother", "mother", "father", "sister", "little dog", "grandmother", "old cat", "pony"])
    return ["In {a|the} [tadj] shop {near|beside|behind} <place>, <h> saw a <obj> for {ten|twelve|fifteen|twenty|thirty} coins and {told <f> about it|dreamed of it|talked about it} [way].",
            "So <h> {swept|cleaned|painted} the [tadj] {yard|steps|fence} of a [trait] neighbour, {fed|brushed|walked} a [acolor] {horse|dog|goat|donkey} and {sold|picked} {apples|berries|flowers|nuts|herbs}.",
            "[when], <h> {took|counted|poured} the coins from a [look] [color] {box|jar|tin} and {ran|set off|walked} [way] to the [tadj] shop {near|beside|behind} <place>.",
            "<h> [way] {met|passed|greeted} <f>, who sat {<spot1>|<spot2>} and {cried|wept|sobbed|looked [sad]}, while [scene].",
            "\"[hey]<h>, my <sick> is {ill|very ill|sick},\" {said|whispered|sobbed} <f> [tone]. \"And we cannot pay {the doctor|a doctor|the nurse} {from|in} [mapname] {Street|Lane|Hill|Road}.\"",
            "<h> {looked at|felt|weighed} the coins [way], {thought of|said goodbye to} the <obj> and {gave|handed} <f> {everything|every coin|all of it} [way].",
            "[days], <f> {knocked|rang} [way] at <h>'s [tadj] [color] door with [food] and a [look] {parcel|box|bag}.",
            "\"My <sick> is {well|healthy|strong} again,\" {said|cried|called} <f> [tone]. \"{This is for you|This is from all of us|We saved up for this|Open it}, [dear]<h>!\"",
            "<h> [way] {opened|unwrapped} it and found the <obj>, and <f> {laughed|blushed|danced|clapped} [way]."]


_SKILLS = [("ride a bicycle", "look ahead", "rode"), ("whistle", "blow gently", "whistled"), ("swim", "kick with your legs", "swam"), ("skate", "bend your knees", "skated"), ("play the flute", "breathe slowly", "played"),
           ("juggle", "watch the highest ball", "juggled"), ("sing", "stand up straight", "sang"), ("row", "pull with your back", "rowed"), ("dance", "count to four", "danced"), ("ski", "lean forward", "skied"), ("play the drum", "count to four", "drummed")]


def _skill(c):
    skill, tip, did = pick(c["rng"], _SKILLS)
    c["topic"] = "learning to " + skill
    done = "{all the way to|from <home> to|past} <place>" if did in ("rode", "swam", "skated", "rowed", "skied") else "{for a crowd|in front of <f>|for <his> family} <at>"
    return ["{Everyone|Everybody|Every child} in <home> could %s, even <f>, but not <h>, and that made <h> [sad] and [sad]." % skill,
            "[when], <h> {practised|tried} {alone|in secret} <spot1> <at>, but only {frightened|surprised|woke} a [acolor] [pet] and {fell over|hurt <his> knee|gave up|turned red}.",
            "\"[hey]<f>, I {will never|cannot|shall never} %s!\" {sighed|cried|muttered} <h> and {kicked|threw away} [junk]." % skill,
            "\"I {failed|tried} {ten|twenty|fifty|a hundred|thirty} times {before it worked|in my first week|when I was young|at your age}, [dear]<h>,\" [said] <his> <el> [tone].",
            "\"{Just|Only|Always} %s, <h>, {every|each} {day|morning|evening|[weekday]},\" [said] <f> [tone]." % tip,
            "So <h> {practised|tried} [way] {every day|after school|before supper|for an hour a day}, and <f> {cheered|helped|kept count|gave advice} [way], while [scene].",
            "[days], <h> %s %s{| twice} [way], and [sky]." % (did, done),
            "\"[hey]<f>, I can %s!\" [cried] <h>, [glad] and [glad], and <his> <el> {clapped|cheered|nodded|beamed} [way]." % skill,
            "[days], a [trait] {girl|boy} from [mapname] {Street|Lane|Hill|Road} came [way] and asked <h> to {teach|help} {<f> and the others|three friends|everybody} to %s {too|as well} <at>." % skill]


_WORKS = [("sandcastle", "a [tadj] wave {washed it away|broke it|flattened it}", "further up the beach", ["Beach"]), ("tree house", "the {cold|wild|strong|sudden|icy|sharp|rough|evening|howling|stormy} wind {blew the roof off|tore the roof off}", "with thicker ropes", ["Forest", "Garden", "Orchard"]), ("snowman", "the {warm|bright|strong|hot|high|golden|spring|noon|early} sun {melted|spoiled|softened} its {head|nose|arms}", "in the cool shade", ["Park", "Garden", "Hill"]),
          ("raft", "it {came apart|turned over|sank} beside [landmark]", "with tighter knots", ["Lake", "Harbour"]), ("dam", "the {cold|wild|brown|quick|muddy|icy|noisy|swollen|rushing|stubborn} stream {burst through|broke through|washed it away}", "with clay between the stones", ["Forest", "Meadow", "Mill"]), ("tower", "a [acolor] {dog|goat|pony} {ran|walked} into it", "with a wide base", ["Park", "Garden", "Meadow"]),
          ("hut", "the {cold|heavy|grey|wild|icy|sudden|summer|evening|noisy|thick} rain {dripped through|came through|poured in}", "with more leaves", ["Forest", "Orchard", "Hill"]), ("bridge", "a {thin|long|wet|thick|old|loose|rotten|bent|short|weak} plank {cracked|broke|slipped}", "with two strong logs", ["Forest", "Meadow", "Mill"])]


def _build(c):
    c["thing"], ruin, better, kinds = pick(c["rng"], _WORKS)
    _settle(c, kinds)
    c["topic"] = "building a " + c["thing"]
    return ["[when], <h> and <f> {decided|planned|wanted|agreed} to build a {big|fine|tall|proper|splendid|small} <thing> <at>, and [sky].",
            "<h> {carried|measured|fetched|sorted} {everything|all they needed} [way], and <f> {sang|dug|drew plans|gave advice|counted} {<spot1>|<spot2>} [way].",
            "[later], the <thing> {stood there|was ready|was finished} <spot3>, with {a|the} [look] [color] {flag|ribbon|scarf} on top.",
            "But <h> [way] {shouted|gasped|called|cried|screamed}, for %s, and <f> {stood there|looked on|shook <fhis> head} [way]." % ruin,
            "\"{That was|It is|This is} {your|all your} fault, [dear]<f>!\" [cried] <h>. \"{No, yours|You never listen|You were too slow|You did not help}, [dear]<h>!\" [cried] <f> and {turned|walked|stamped} away, [sad] and [sad].",
            "<His> <el> {came|stopped|walked} by with [food]. \"{Try|Begin|Start} again, <h> and <f>,\" [said] <his> <el> [tone]. \"{But together|And be friends|And help each other|And take your time}.\"",
            "\"{Forgive me|I am sorry|I was unfair},\" [said] <h> [tone]. \"Let us [way] {build|make|try} it {again|once more}, <f>, %s.\"" % better,
            "\"[hey]<h>, {I am sorry too|yes, let us|I agree|that is a good idea},\" [said] <f> [tone]. \"{I will help you|You are right|I will sing again|I have a plan}.\"",
            "{This time|Now} <h> and <f> {worked|built} [way], {shared|ate} [food] and {laughed|sang|told jokes} [way].",
            "<h> and <f> finished the {new|second} <thing> by {sunset|evening|supper|five|six}, and {a [acolor] [pet]|a [trait] [trade]} from [mapname] {Street|Lane|Farm} {came|stopped} to {see|admire} it [way]."]


def _wind(c):
    c["o"] = pick(c["rng"], ["hat", "kite", "balloon", "scarf", "letter", "umbrella", "flag", "paper bird", "ribbon", "shawl", "cap", "napkin"])
    c["co"] = pick(c["rng"], LISTS["color"]) + " " + c["o"]
    c["obj"] = pick(c["rng"], LISTS["look"]) + " " + c["co"]
    c["topic"] = "a%s %s in the wind" % ("n" if c["o"][0] in "aeiou" else "", c["o"])
    return ["[when], <h> {walked|stood|stopped} {<spot1>|<spot2>} <at> with a <obj> from <his> <el>.",
            "Then <h> [way] felt a {wild|strong|sudden|cold|cheeky|sharp|rough|warm|wet} {gust|wind|breeze|squall}.",
            "It {tore|snatched|pulled|lifted} the <obj> from <h> [way] and {blew|carried|whirled} it over [landmark].",
            "\"{Stop|Come back|Wait|Help}, my <co>!\" [cried] <h> and ran after it {down|along|up} [mapname] {Street|Lane|Hill|Road} [way].",
            "<f> [way] {joined <h>|ran along|came too}, then a [trait] {baker|postman|farmer|tailor|painter|sailor|gardener|miller} and a [acolor] {dog|goose|goat|pony} {from|of} [mapname] {Street|Lane|Farm|Hill}.",
            "The <co> {danced|sailed|flew|spun} past [landmark] and {landed|stopped|stuck} on [landmark], and <h> {looked up|sat down|waited} [way].",
            "\"{Nobody|None of us} can reach <h>'s <co> alone,\" [said] <f> [tone]. \"{But together we can|So let us work together|So we must all help|So we need each other}, [dear]<h>!\"",
            "<f> and the others {held|fetched|steadied} a [tadj] ladder, {pointed|called|counted the steps} [way], and <h> {climbed|went up} [way].",
            "{Got it|There}! <h> {held|had|waved} the <co> again, a little {wet|torn|dirty|crumpled|dusty}, and <f> {cheered|clapped|laughed} [way].",
            "\"The wind {took|stole|borrowed} {my|a} <obj>, [dear]<f>,\" [said] <h> [tone]. \"But it {brought|gave} me {many|some|five|six|ten} [trait] friends {from|in} [mapname] {Street|Lane|Road}.\""]


def _letter(c):
    c["topic"] = "a lost letter"
    c["n"] = pick(c["rng"], LISTS["trade"])
    c["kin"] = pick(c["rng"], ["brother", "sister", "son", "daughter", "nephew", "niece", "old friend"])
    return ["[when], <h> {found|saw} a {wet|crumpled|dusty|thick|thin|muddy} [color] letter for the <n> {<spot1>|<spot2>} <at>.",
            "\"[hey]<f>, {it fell from a bag|somebody lost it|the postman dropped it},\" [said] <h>, {showing|giving} it to <f> [way].",
            "\"{Then let us|We should|We must|Let us} {bring|take} it to the <n> {at once|today|before supper|right away}, [dear]<h>,\" [said] <f> [tone].",
            "<h> and <f> {walked|went|set out} past [junk] and [landmark] to a [house], but {<h> found nobody there|<h> found it locked|<f> saw no light}, and [scene].",
            "A [trait] {man|woman|boy|girl} with a [look] [color] {cap|bag|coat|scarf} told <f> that the <n> now {lived|worked} in [mapname] {Street|Road|Lane|Square}.",
            "<h> and <f> found the <n> {beside|near|on} {a|the} [tadj] {bench|step|wall|chair} with a [acolor] {cat|dog|hen|goat}, [sad] and [sad].",
            "\"<f> and I {found|have|bring} {your|a} [color] letter {from|that was at|that lay at} <place>,\" said <h> [tone].",
            "The <n> {opened|read} it [way] and {laughed|wept for joy|smiled}: \"[hey]<h>, my <kin> from [mapname] {Island|Bay|Valley|Hill|Bridge} [way] comes {home|back} {in [month]|on [weekday]}!\"",
            "[days], <h> and <f> {had|shared|ate} [food] with the <kin> of the <n> {<spot1>|<spot2>|<spot3>}."]


_PLOTS = [_lost, _fear, _share, _gift, _rescue, _grow, _bake, _broken, _contest, _truth, _newkid, _lostway, _rain, _treasure, _fable, _night,
          _helping, _saving, _skill, _build, _wind, _letter]


def story(seed):
    """The story of that number: (what it is about, the hero's name, its text)."""
    rng = spin.make_rng("story", seed)
    c = _cast(rng)
    plot = pick(rng, _PLOTS)
    templates = list(plot(c))
    if plot is not _fable:
        if rng.random() < 0.35:
            templates.insert(1 + int(rng.random() * 3), _SCENE)
        templates = [_INTRO] + ([_FRIEND] if plot is not _newkid else []) + templates + [_CLOSE]
    else:
        templates.append("<h> and <f> {learned|proved|showed|discovered} that [virtue] is {better|stronger|richer|wiser} than [vice].")
    parts = [expand(_varied(t), rng, c) for t in templates]
    for i, part in enumerate(templates):
        if 2 < i < len(parts) - 1 and part.startswith(("<h> ", "<f> ")) and rng.random() < 0.6:
            parts[i] = pick(rng, _OPENERS) + " " + parts[i]
    parts = [part[0].upper() + part[1:] for part in parts]
    cut1 = len(parts) // 3 + int(rng.random() * 2)
    cut2 = len(parts) - 2 - int(rng.random() * 2)
    paragraphs = [parts[:cut1], parts[cut1:cut2], parts[cut2:]] if rng.random() < 0.6 else [parts]
    return polish("x " + c["topic"])[2:], c["h"], "\n\n".join(polish(" ".join(p)) for p in paragraphs)
