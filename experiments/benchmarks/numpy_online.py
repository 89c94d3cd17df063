"""Asynchronous online learning in NumPy, vectorized over clients with care: the rival of fljax.

Only clients with a sample are updated, only senders' messages are made, only shared parameters are
exchanged, and what is on its way is kept as sums per arrival round, as in fljax; features of
clients that would not use them are not computed. float32 throughout.
"""

from typing import NamedTuple

import numpy as np

SINGLE = np.float32


class Setting(NamedTuple):
    """Sizes and laws of figure 4.3(a)."""

    clients: int
    dim: int
    rounds: int
    rates: np.ndarray  # [K] of arrival
    available: np.ndarray  # [K]
    bandwidth: float
    delta: float
    longest: int
    test: int
    record_every: int


class Data:
    """One run's streams, features, participation and delays."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.rng = rng = np.random.Generator(np.random.SFC64(seed))
        k = setting.clients
        self.setting = setting
        self.omega = rng.normal(0, 1 / setting.bandwidth, (4, setting.dim)).astype(SINGLE)
        self.phase = rng.uniform(0, 2 * np.pi, setting.dim).astype(SINGLE)
        self.theta = rng.uniform(0.2, 0.9, k).astype(SINGLE)
        self.mean = rng.uniform(-0.2, 0.2, k).astype(SINGLE)
        self.spread = np.sqrt(rng.uniform(0.2, 1.2, k)).astype(SINGLE)
        self.noise = np.sqrt(rng.uniform(0.005, 0.03, k)).astype(SINGLE)
        self.gain = np.sqrt(1 - self.theta**2)
        self.recent = self._history(np.arange(k))
        who = rng.integers(0, k, setting.test)
        inputs = self._history(who)[:, [0, 1, 4, 3]]
        self.test = self.features(inputs)
        self.answers = self.target(inputs) + self.noise[who] * rng.standard_normal(
            setting.test, SINGLE
        )

    def _history(self, who: np.ndarray) -> np.ndarray:
        theta, gain, mean, spread = (
            a[who] for a in (self.theta, self.gain, self.mean, self.spread)
        )
        draw = self.rng.standard_normal((5, len(who)), SINGLE)
        x = mean * gain / (1 - theta) + spread * draw[0]
        rows = [x]
        for innovation in draw[1:]:
            x = theta * x + gain * (mean + spread * innovation)
            rows.append(x)
        return np.stack(rows[::-1], axis=1)

    @staticmethod
    def target(x: np.ndarray) -> np.ndarray:
        first = np.sqrt(x[:, 0] ** 2 + np.sin(np.pi * x[:, 3]) ** 2)
        return first + (0.8 - 0.5 * np.exp(-(x[:, 1] ** 2)) * x[:, 2])

    def features(self, inputs: np.ndarray) -> np.ndarray:
        angle = inputs @ self.omega
        angle += self.phase
        np.cos(angle, out=angle)
        angle *= SINGLE(np.sqrt(2 / self.setting.dim))
        return angle

    def arrive(self) -> np.ndarray:
        """Move all streams on; the clients that get a sample."""
        k = self.setting.clients
        draw = self.rng.standard_normal((2, k), SINGLE)
        newest = self.theta * self.recent[:, 0] + self.gain * (self.mean + self.spread * draw[0])
        self.recent = np.concatenate([newest[:, None], self.recent[:, :-1]], axis=1)
        self.observation = self.noise * draw[1]
        self.here = self.rng.random(k, SINGLE) < self.setting.available
        return np.flatnonzero(self.rng.random(k, SINGLE) < self.setting.rates)

    def samples(self, who: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        inputs = self.recent[who][:, [0, 1, 4, 3]]
        return self.features(inputs), self.target(inputs) + self.observation[who]

    def lags(self, count: int) -> np.ndarray:
        uniform = 1 - self.rng.random(count, SINGLE)
        return np.floor(np.log(uniform) / np.log(self.setting.delta)).astype(int)

    def error(self, model: np.ndarray) -> float:
        return float(np.mean((self.test @ model - self.answers) ** 2))


class Line:
    """What is on its way, by the round it arrives in."""

    def __init__(self, setting: Setting) -> None:
        self.total = np.zeros((setting.longest + 1, setting.dim), SINGLE)
        self.share = np.zeros_like(self.total)
        self.weight = np.zeros(setting.longest + 1, SINGLE)

    def take(self, n: int) -> tuple[np.ndarray, np.ndarray, float]:
        slot = n % len(self.total)
        result = self.total[slot].copy(), self.share[slot].copy(), self.weight[slot]
        self.total[slot], self.share[slot], self.weight[slot] = 0, 0, 0
        return result


def online_fed(setting: Setting, seed: int, step: float, fraction: float = 1.0) -> list[float]:
    """Online-Fed, pooled over arrivals; Online-FedSGD at a fraction of one."""
    data, line = Data(setting, seed), Line(setting)
    model, errors = np.zeros(setting.dim, SINGLE), []
    for n in range(1, setting.rounds + 1):
        fresh = data.arrive()
        who = fresh[data.here[fresh]]
        if fraction < 1:
            who = who[data.rng.random(len(who)) < fraction]
        if len(who):
            z, y = data.samples(who)
            local = model + step * (y - z @ model)[:, None] * z
            lag = data.lags(len(who))
            for late in np.unique(lag):
                if late <= setting.longest:
                    mine, slot = lag == late, (n + late) % (setting.longest + 1)
                    line.total[slot] += local[mine].sum(0)
                    line.weight[slot] += mine.sum()
        total, _, weight = line.take(n)
        if weight:
            model = total / weight
        if n % setting.record_every == 0:
            errors.append(data.error(model))
    return errors


def partial_sharing(
    setting: Setting,
    seed: int,
    step: float,
    size: int,
    discount: float = 1.0,
    coordinated: bool = False,
    pooled: bool = False,
    fraction: float = 1.0,
) -> list[float]:
    """PAO-Fed, variants 1 and 2; pooled and with a fraction of the clients PSO-Fed."""
    data, line = Data(setting, seed), Line(setting)
    k, dim = setting.clients, setting.dim
    model, local, errors = np.zeros(dim, SINGLE), np.zeros((k, dim), SINGLE), []
    offset = np.zeros(k, int) if coordinated else size * np.arange(k)
    window = np.arange(size)
    for n in range(1, setting.rounds + 1):
        fresh = data.arrive()
        who = fresh[data.here[fresh]]
        if fraction < 1:
            who = who[data.rng.random(len(who)) < fraction]
        if len(who):
            portion = (size * n + offset[who][:, None] + window) % dim
            local[who[:, None], portion] = model[portion]
        if len(fresh):
            z, y = data.samples(fresh)
            mine = local[fresh]
            z *= (SINGLE(step) * (y - np.einsum("kd,kd->k", mine, z)))[:, None]
            mine += z
            local[fresh] = mine
        if len(who):
            portion = (size * (n + 1) + offset[who][:, None] + window) % dim
            values, lag = local[who[:, None], portion], data.lags(len(who))
            for late in np.unique(lag):
                if late > setting.longest:
                    continue
                chosen, slot = lag == late, (n + late) % (setting.longest + 1)
                at, count = portion[chosen].ravel(), chosen.sum()
                total = np.bincount(at, values[chosen].ravel(), dim).astype(SINGLE)
                share = np.bincount(at, minlength=dim).astype(SINGLE)
                weight = SINGLE(discount**late if pooled else discount**late / count)
                if pooled:
                    line.total[slot] += weight * total
                    line.share[slot] += weight * share
                    line.weight[slot] += count
                else:
                    covered = share > 0  # the fresher class takes the place of the older ones
                    line.total[slot, covered] = weight * total[covered]
                    line.share[slot, covered] = weight * share[covered]
        total, share, weight = line.take(n)
        change = total - share * model
        model = model + (change / max(weight, 1) if pooled else change)
        if n % setting.record_every == 0:
            errors.append(data.error(model))
    return errors
