"""Several stories told at once, in turns, each read by a coroutine while it is written."""
import asyncio

import espalier as sgl
from example import backend


@sgl.function
def tell(s, hero):
    s += f"Once upon a time there was a {hero}."
    for turn in range(3):
        s += sgl.gen(f"part{turn}", max_tokens=30, stop="\n") + " Then"


async def listen(hero, seed):
    state = tell.run(hero, temperature=0.7, seed=seed, stream=True)
    pieces = [piece async for piece in state.text_async_iter()]
    return f"({len(pieces)} pieces) " + "".join(pieces)


async def main():
    heroes = ["cat", "king", "small boat"]
    for story in await asyncio.gather(*(listen(hero, i) for i, hero in enumerate(heroes))):
        print(story, end="\n\n")


if __name__ == "__main__":
    sgl.set_default_backend(backend())
    asyncio.run(main())
