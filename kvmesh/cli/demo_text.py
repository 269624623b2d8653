"""The document that the demo asks about: some 700 tokens that two questions share."""

HANDBOOK = """\
You answer questions about the handbook below in one or two sentences.

THE KEEPER'S HANDBOOK OF PELICAN POINT

1. The lighthouse. Pelican Point Light was built in 1874 from grey granite. The tower is 41 \
metres high and has 196 steps. The lamp turns once every twelve seconds and shows two white \
flashes. In clear weather it is seen from 22 nautical miles. The first keeper was Agnes Thorne, \
who served for 31 years and wrote the first edition of this book.

2. The day. The keeper puts out the lamp at sunrise, draws the curtains of the lantern room so \
that the sun does not heat the lens, and writes the weather into the blue log: wind, sea, \
visibility and the height of the barometer. Brass is polished on Mondays, glass on Wednesdays, \
and the stairs are swept on Fridays. Stores come by boat on the first Tuesday of each month, if \
the sea allows it. A keeper who runs low on flour or oil raises the yellow flag on the south \
mast.

3. The night. The lamp is lit half an hour before sunset. The keeper winds the clockwork every \
four hours; a bell rings when it needs winding. In fog the horn sounds one long blast every \
ninety seconds, and nobody sleeps in the tower. A keeper who must leave the lantern room at \
night takes the red lantern and hangs it on the door, so that a relief can see that the room is \
empty.

4. Ships in trouble. If a ship shows a red rocket, the keeper answers with a green one, \
telephones the lifeboat station at Marlow Bay, and lights the beach fire on the north side, \
never on the south side, where the rocks are. Blankets, dry clothes and a kettle are kept in the \
oak chest under the stairs. The chest is checked on the last day of every month and nothing in \
it may be borrowed.

5. The animals. The station keeps six hens, a goat called Bramble and a cat called Admiral. The \
cat may go everywhere except into the lantern room. The goat is tied up when the stores arrive, \
since she eats labels, and then nobody knows what is in the tins. Pelicans that rest on the \
railing are left alone: it is said that the light burns steadily as long as they come.

6. Visitors. Visitors are welcome on Saturdays between two and five. Not more than eight may be \
in the tower at once, and children hold a hand on the stairs. Visitors may ring the bell once, \
and may not touch the lens. Each one writes a name into the green book by the door. The keeper \
offers tea.

7. Repairs. The keeper mends what can be mended with the tools of the workshop, and writes it \
into the blue log. For the clockwork, the lens and the telephone the keeper calls the engineer \
from Marlow Bay. Spare wicks are in the third drawer, spare panes behind the coal shed, wrapped \
in sacks.
"""

QUESTIONS = ("Who was the first keeper?", "From how far is the lamp seen?")
