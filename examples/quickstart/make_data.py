"""Write the prompts of the quickstart task: `prompts_train.jsonl` (256) and `prompts_heldout.jsonl` (48).

The two files ask about different things. Both are shipped; run this only to change the task:

    python examples/quickstart/make_data.py
"""

import json
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
NUM_TRAIN = 256
NUM_HELDOUT = 48
QUESTION = "Tell me one fact about {thing} in at most ten words."

# Grouped by kind, so that a reader can check at a glance that nothing is listed twice.
THINGS = {
    "animals": """
        ants, bats, bears, bees, butterflies, camels, cats, cheetahs, chickens, cows, crabs,
        crocodiles, crows, deer, dogs, dolphins, ducks, eagles, elephants, falcons, flamingos,
        foxes, frogs, giraffes, goats, gorillas, hedgehogs, horses, hummingbirds, jellyfish,
        kangaroos, koalas, lions, lizards, lobsters, monkeys, moths, octopuses, ostriches, otters,
        owls, pandas, parrots, penguins, pigeons, pigs, rabbits, ravens, salmon, seahorses, seals,
        sharks, sheep, snails, snakes, spiders, squirrels, starfish, swans, tigers, tortoises,
        turtles, whales, wolves, zebras""",
    "food": """
        almonds, apples, apricots, avocados, bananas, beans, bread, broccoli, butter, cabbage,
        carrots, cheese, cherries, chili peppers, chocolate, cinnamon, coconuts, coffee, corn,
        cucumbers, dates, eggs, figs, garlic, ginger, grapes, honey, ice cream, lemons, lentils,
        mangoes, milk, mushrooms, mustard, noodles, oats, olives, onions, oranges, pasta, peaches,
        peanuts, pears, pepper, pineapples, potatoes, pumpkins, rice, saffron, salt, soup, spinach,
        strawberries, sugar, tea, tofu, tomatoes, vanilla, vinegar, walnuts, watermelons, yogurt""",
    "nature": """
        amber, autumn, bamboo, beaches, clouds, coal, comets, copper, coral reefs, deserts,
        diamonds, earthquakes, eclipses, fog, forests, fossils, geysers, glaciers, gold, granite,
        grass, hail, hurricanes, ice, icebergs, iron, islands, lakes, lightning, limestone, marble,
        mercury, meteors, moss, mountains, oak trees, oceans, orchids, palm trees, pearls, pine
        trees, quartz, rain, rainbows, rivers, roses, sand, silver, snow, spring, sunflowers, the
        Moon, the Sun, the wind, thunder, tides, tornadoes, tulips, volcanoes, waterfalls""",
    "inventions": """
        airplanes, alarm clocks, anchors, balloons, batteries, bicycles, books, boats, bricks,
        bridges, buttons, calculators, calendars, cameras, candles, canoes, cars, chairs, clocks,
        compasses, computers, concrete, elevators, engines, eyeglasses, fireworks, forks, glass,
        guitars, hammers, helicopters, ink, keyboards, kites, knives, ladders, lamps, locks,
        magnets, maps, matches, microscopes, mirrors, newspapers, paint, paper, parachutes, pencils,
        pianos, plastic, radios, robots, rockets, ropes, sailboats, satellites, scissors, shoes,
        silk, skateboards, soap, spoons, stamps, steel, submarines, tables, telephones, telescopes,
        tents, thermometers, tractors, trains, trumpets, umbrellas, violins, watches, wheels,
        windmills, windows, zippers""",
    "places": """
        Africa, Antarctica, Australia, Brazil, Canada, Chile, China, Cuba, Denmark, Egypt, Finland,
        France, Germany, Greece, Hawaii, Iceland, India, Ireland, Italy, Japan, Kenya, London, Mars,
        Mexico, Morocco, Nepal, Norway, Paris, Peru, Poland, Portugal, Rome, Saturn, Spain, Sweden,
        Switzerland, Thailand, Tokyo, Turkey, Vietnam""",
}


def things() -> list[str]:
    """Every thing once, the kinds dealt out in turn so that both files hold all of them."""
    piles = [[" ".join(name.split()) for name in text.split(",")] for text in THINGS.values()]
    longest = max(map(len, piles))
    dealt = [pile[row] for row in range(longest) for pile in piles if row < len(pile)]
    if len(set(dealt)) != len(dealt):
        raise ValueError(f"listed twice: {sorted({name for name in dealt if dealt.count(name) > 1})}")
    return dealt


def write(path: Path, names: list[str]) -> None:
    rows = [{"messages": [{"role": "user", "content": QUESTION.format(thing=name)}]} for name in names]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"{path.name}: {len(rows)} prompts")


def main() -> None:
    names = things()
    every = len(names) // NUM_HELDOUT  # spread the held-out things evenly over the dealt order
    heldout = names[::every][:NUM_HELDOUT]
    train = [name for name in names if name not in set(heldout)][:NUM_TRAIN]
    if len(train) < NUM_TRAIN:
        raise ValueError(f"{len(names)} things are too few for {NUM_TRAIN} + {NUM_HELDOUT} prompts")
    write(FOLDER / "prompts_train.jsonl", train)
    write(FOLDER / "prompts_heldout.jsonl", heldout)


if __name__ == "__main__":
    main()
