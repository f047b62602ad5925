"""Sentences to train small vocabularies on and to time them with."""

TRAINING = """
The heron stood in the shallow water and waited. It waited until the light had gone, and it didn't
move. "We'll come back tomorrow," said the boy, "and you'll see that it's there." They'd been there
before, in 1987 and in 2004, when the river was high: 12, 345, 6789 and 1000000 are numbers.
def heron(depth):
    if depth > 10:
        return {"bird": "heron", "depth": depth}
    return [heron(d) for d in range(depth)]
for (int i = 0; i < n; ++i) { sum += values[i]; }  // the sum of all values
SELECT name, depth FROM birds WHERE depth >= 3;
Der Reiher stand im seichten Wasser. Él esperó. Elle a attendu jusqu'à la nuit. Цапля стояла в воде.
鷺は浅い水の中に立っていた。水面は静かだった。苍鹭站在浅水里。 왜가리가 물속에 서 있었다.
😀 👩‍👩‍👧‍👦 🇫🇷 ❤️ and so on. The water, the water, the water and the heron.
"""

SENTENCES = """The heron stood in the shallow water and waited until the light had gone, and it didn't move.
Der Reiher stand im seichten Wasser und wartete, bis das Licht verschwunden war; größere Vögel flogen über ihn.
El pájaro esperó en el agua poco profunda hasta que la luz desapareció, y después voló hacia la montaña.
Le héron attendait dans l'eau peu profonde jusqu'à la tombée de la nuit, où l'été s'achevait déjà.
Цапля стояла в мелкой воде и ждала, пока не погас свет, а потом улетела за реку к своему гнезду.
Ο ερωδιός στεκόταν στα ρηχά νερά και περίμενε ώσπου να χαθεί το φως πίσω από τα βουνά.
وقف مالك الحزين في المياه الضحلة وانتظر حتى غاب الضوء ثم طار نحو الجبال البعيدة
האנפה עמדה במים הרדודים וחיכתה עד שהאור נעלם ואז עפה אל ההרים
बगुला उथले पानी में खड़ा रहा और रोशनी जाने तक इंतज़ार करता रहा, फिर पहाड़ों की ओर उड़ गया।
鷺は浅い水の中に立って、光が消えるまで待っていました。それから山の方へ飛んで行きました。
苍鹭站在浅水里，一直等到光线消失，然后飞向远处的山。人们在岸边看着它，没有说话。
왜가리는 얕은 물속에 서서 빛이 사라질 때까지 기다렸다가 산 쪽으로 날아갔다.
นกกระสายืนอยู่ในน้ำตื้นและรอจนแสงหายไป แล้วบินไปทางภูเขา
Con diệc đứng trong nước nông và chờ cho đến khi ánh sáng tắt, rồi bay về phía những ngọn núi. 🐦👩\u200d👧❤\ufe0f""".split("\n")
