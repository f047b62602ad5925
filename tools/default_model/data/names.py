"""Names of people, towns and families. Every sixth of each list is held out for evaluation."""

GIRLS = """Ada Agnes Aisha Alice Alma Amelia Amina Amy Ana Anita Anna Anya Astrid Audrey Aurora Ava Beatrice Bella Beth Bianca Bonnie
Bridget Camila Carla Carmen Carol Cecilia Celia Chloe Clara Clarissa Cora Daisy Dalia Daphne Delia Diana Dina Dora Edith Elena Eliza Ella
Ellen Elsa Emilia Emily Emma Erica Esme Esther Eva Eve Faith Fatima Felicity Fern Fiona Flora Florence Frances Freya Frida Gemma Georgia
Gloria Grace Greta Hana Hannah Harriet Hazel Heidi Helen Holly Ida Imogen Ines Ingrid Irene Iris Isabel Isla Ivy Jade Jane Janet Jasmine
Jill Joan Josie Joy Judy Julia June Kara Karin Kate Keira Kira Lara Laura Layla Lea Leah Lena Lila Lily Lina Lisa Lola Lorna Lottie Lucia
Lucy Luna Lydia Mabel Maeve Maggie Maia Mara Margaret Maria Marina Martha Mary Matilda Maya Megan Mia Mila Millie Mina Mira Miriam Molly
Mona Nadia Naomi Natalie Nell Nina Noor Nora Olga Olive Olivia Opal Paula Pearl Penny Petra Phoebe Polly Priya Rachel Renata Rita Rosa
Rosalind Rosie Ruby Ruth Sadie Sally Samira Sara Selma Sofia Sonia Stella Sue Susan Sylvia Tamara Tara Tess Thea Tilda Tina Uma Ursula
Vera Victoria Viola Wendy Willa Yara Yasmin Yuki Zara Zelda Zoe""".split()

BOYS = """Aaron Abdul Adam Ahmed Alan Albert Alec Alex Alfie Ali Amir Andre Andrew Anton Archie Arjun Arlo Arthur Asher Axel Barney Basil Ben
Bernard Bill Bob Boris Bruno Caleb Callum Carl Carlos Casper Cedric Charlie Chris Clark Colin Conrad Cyrus Dan Daniel Darius David Dennis Diego
Dmitri Dominic Dylan Eddie Edgar Edmund Edwin Eli Elias Elliot Emil Eric Ethan Evan Felix Fergus Finn Francis Frank Fred Gareth Gary George
Gilbert Giles Gordon Graham Gus Hamid Hans Harold Harry Harvey Hassan Hector Henry Herbert Hugh Hugo Ian Idris Igor Isaac Ivan Jack Jacob
Jake James Jamie Jasper Jay Jeremy Jim Joe Joel John Jonah Jonas Joseph Josh Juan Jude Julian Kai Karim Karl Keith Ken Kevin Kofi Kurt Lars
Leo Leon Lewis Liam Linus Logan Louis Luca Lucas Luis Luke Magnus Malik Marco Marcus Mario Mark Martin Mateo Matt Max Michael Miguel Mike
Milo Mohan Morris Nathan Ned Neil Nicholas Nico Nigel Noah Norman Oliver Omar Orson Oscar Otis Otto Owen Patrick Paul Pedro Percy Peter Phil
Pierre Quentin Rafael Raj Ralph Ravi Ray Rex Richard Rob Robin Roger Roland Roman Ron Rory Rowan Rudy Rupert Ryan Sam Samir Sanjay Sean
Seth Simon Stefan Stephen Steve Stuart Tariq Ted Terry Theo Thomas Tim Tobias Toby Tom Tony Tristan Victor Vikram Vincent Walter Wesley Will
Xavier Yusuf Zack Zane""".split()

SURNAMES = """Abbott Adler Allen Archer Baker Barnes Bell Bennett Berg Bishop Black Blake Bloom Bolton Brandt Brook Brown Burke Butler Carey
Carter Castle Chen Clarke Cole Collins Conway Cooper Costa Cox Cruz Dalton Davies Dean Dixon Doyle Drake Duarte Dunn Ellis Evans Farmer
Fischer Fisher Fleming Flores Ford Foster Fowler Fox Garcia Gibbs Gomez Grant Gray Green Hall Hansen Harper Harris Hart Hayes Hill Hoffman
Holt Hudson Hughes Hunt Ito Jensen Jones Keller Kelly Khan Kim King Klein Knight Kumar Lane Larsen Lee Lin Lloyd Lopez Lowe Marsh Martinez
Mason Mendes Meyer Miller Mills Moore Morgan Morris Moss Murphy Nelson Newton Novak Nunez Olsen Ortiz Osborne Page Palmer Park Parker Patel
Pearce Perez Perry Petrov Phillips Pike Porter Price Quinn Ramos Reed Reyes Rice Rivera Roberts Rossi Rowe Russo Sato Schmidt Scott Shah
Sharp Shaw Silva Singh Sloan Smith Snow Stone Suzuki Swan Tanaka Taylor Thorne Torres Turner Vance Vega Wagner Walker Wallace Walsh Ward
Watson Weaver Webb Weber Wells West White Wolf Wood Wright Young Zhang Ziegler""".split()

TOWNS = """Aberdeen Adelaide Amsterdam Antwerp Athens Auckland Austin Baltimore Barcelona Basel Bath Belfast Bergen Berlin Bilbao Birmingham
Bologna Bombay Bonn Boston Bremen Bristol Bruges Brussels Budapest Buffalo Cadiz Cairo Calgary Cambridge Cardiff Chicago Cologne Cork Dallas Delhi
Denver Detroit Dresden Dublin Dundee Durban Edinburgh Exeter Florence Frankfurt Galway Geneva Genoa Ghent Glasgow Granada Graz Hamburg
Hanover Helsinki Houston Istanbul Jakarta Kyoto Lagos Leeds Leipzig Lima Lisbon Liverpool London Lyon Madrid Malaga Manchester
Marseille Melbourne Memphis Miami Milan Montreal Moscow Mumbai Munich Nagoya Nairobi Nantes Naples Newcastle Nice Norwich Nottingham
Oakland Osaka Oslo Ottawa Oxford Palermo Paris Perth Philadelphia Phoenix Pisa Plymouth Porto Portland Prague Quito Rome Rotterdam Salzburg
Santiago Seattle Seoul Seville Sheffield Stockholm Sydney Tampa Tokyo Toronto Toulouse Trieste Turin Utrecht Valencia Vancouver Venice Verona
Vienna Warsaw Wellington York Zagreb Zurich""".split()


def _split(words):
    words = list(dict.fromkeys(words))
    return [w for i, w in enumerate(words) if i % 6 != 4], [w for i, w in enumerate(words) if i % 6 == 4]
