"""Made-up rows in the form of UCI census income, for runs that need the form and not the people."""

import random
from pathlib import Path

from outlast.trainers.census import CATEGORIES, MISSING


def write(path: Path, rows: int, seed: int = 0) -> Path:
    """Write so many rows; the same seed gives the same ones. Income depends on some columns."""
    dice = random.Random(seed)
    lines = []
    for _ in range(rows):
        age, schooling, hours = dice.randint(17, 80), dice.randint(1, 16), dice.randint(5, 80)
        gain = dice.choice((0, 0, 0, dice.randint(1, 20_000)))
        chosen = {
            name: MISSING if dice.random() < 0.02 else dice.choice(values)
            for name, values in CATEGORIES.items()
        }
        score = schooling / 4 + age / 25 + hours / 25 + gain / 4000 + dice.gauss(0, 1.5)
        cells = [
            age, chosen["workclass"], dice.randint(20_000, 400_000), chosen["education"],
            schooling, chosen["marital-status"], chosen["occupation"], chosen["relationship"],
            chosen["race"], chosen["sex"], gain, 0, hours, chosen["native-country"],
            ">50K" if score > 8 else "<=50K",
        ]  # fmt: skip
        lines.append(", ".join(str(cell) for cell in cells))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path
